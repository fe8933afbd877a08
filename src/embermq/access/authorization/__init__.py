"""Who may publish, subscribe and receive what: rules, the files they are read from, and decisions.

Rules of the room:

* Text in, rules out: it opens no file, and has no clock, socket or thread.
* The first rule that is about the client, the action and the topic decides. A deny that cannot be worked out for a
  client hits, an allow that cannot does not.
* What a client brings (its name, its id) is compared and never read as a wildcard.

`sessions` and `intake` ask it, `app` reads the files for it; it knows topics only.
"""
