//! The node's network: pod routes, the tunnel, the rules of nft and the balancer before the API
//! servers.
