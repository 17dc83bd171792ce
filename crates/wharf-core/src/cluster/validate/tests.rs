//! Every rule, one request each.
