"""Reports as one self-contained HTML file: the record (`build`) and its page (`page`)."""
