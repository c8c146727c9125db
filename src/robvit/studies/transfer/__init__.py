"""Beyond the four papers: attacks made on one model, judged by others."""
