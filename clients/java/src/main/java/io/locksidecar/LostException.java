package io.locksidecar;

/**
 * This owner held the lock and lost it: from that moment on another owner may hold it.
 *
 * <p>A write under the lock since then is safe only if the resource has checked the {@linkplain #fence() fence}; see
 * the description of the package.
 */
public class LostException extends NotHeldException {
    private static final long serialVersionUID = 1L;

    /** The lock's name. */
    private final String key;
    /** The fencing token. */
    private final long fence;
    /** The reason. */
    private final String reason;

    LostException(String message, String key, long fence, String reason) {
        super(message);
        this.key = key;
        this.fence = fence;
        this.reason = reason;
    }

    /**
     * Returns the lock's name.
     *
     * @return the key
     */
    public String key() {
        return key;
    }

    /**
     * Returns the fencing token that the lost hold had.
     *
     * @return the fence; 0 if it was degraded and had none
     */
    public long fence() {
        return fence;
    }

    /**
     * Returns why the lock was lost, in one word.
     *
     * <ul>
     *   <li>As the daemon said: {@code expired} (its deadline passed before a renewal was confirmed),
     *       {@code gone} (the store no longer has it), {@code fixed_end} (a fixed hold reached its own end),
     *       {@code forced} (an operator unlocked it), {@code session} (the store ended the daemon's session),
     *       {@code shutdown} (the drain time of a stopping daemon is over), {@code too_long} (the longest
     *       hold that the namespace allows is over), {@code silent} (this client has not sent the heartbeat
     *       that the namespace asks for). This client may notice a {@code fixed_end} or {@code too_long} first.
     *   <li>{@code silence}: the validity that the daemon had stated is over.
     *   <li>{@code unconfirmed}: a release that nothing waited for ({@link LockOptions#confirm}) was not confirmed by the
     *       store. Such a release may also fail with {@code gone}.
     *   <li>{@code connection}: the connection to the daemon has ended.
     *   <li>{@code closed}: this client was closed.
     *   <li>{@code resigned}: the candidate itself ended the term of an {@link Election} ({@link Term#check} throws
     *       this).
     * </ul>
     *
     * <p>A daemon of a later version may have reasons that are not in this list.
     *
     * @return the reason
     */
    public String reason() {
        return reason;
    }

    @Override
    LostException again() {
        return new LostException(getMessage(), key, fence, reason);
    }
}
