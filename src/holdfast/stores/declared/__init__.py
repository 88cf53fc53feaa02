"""Resources declared in files or in a Kubernetes cluster, and the rows of other stores that they bring about."""
