"""From a circuit file and an inventory to op instances: config, layers, weights, edges, shapes."""
