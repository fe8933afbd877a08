"""Topics: names, filters, shared groups, the subscription trie and the tree of retained topics.

Rules of the room:

* It knows strings only: no packet, no session, no clock, no I/O. Keys and values are opaque to it.
* Nothing recurses over levels, so a topic of 65,535 levels costs memory and time but never the stack.
* A topic that starts with ``$`` is never matched by a filter that starts with a wildcard [MQTT-4.7.2-1].

Every other room may call it; it calls nobody.
"""
