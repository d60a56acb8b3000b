"""Put proven kernels to use: operators in torch, and three reversible ways into a model (``graph``, ``call``, ``ops``)."""
