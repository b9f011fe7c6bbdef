package io.locksidecar;

/** The end of a call: a reply's code, its text and a number in it; or an error without a reply. */
record Answer(int code, String text, long number, LockException error) {
    /** The answer of a success without a number. */
    static final Answer OK = new Answer(Codes.OK, "", 0, null);

    static Answer failed(LockException why) {
        return new Answer(-1, "", 0, why);
    }

    /** Returns a failure that names the key. */
    Answer of(String key) {
        return new Answer(code, "\"" + key + "\": " + text, number, error);
    }
}
