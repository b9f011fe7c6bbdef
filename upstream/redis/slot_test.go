package redis

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

func TestSlotsAreRedisOwn(t *testing.T) {
	// These are answers of CLUSTER KEYSLOT. TestSlotsAreTheServersOwn asks a real server.
	for name, want := range map[string]uint16{
		"": 0, "123456789": 12739, "foo": 12182, "{foo}bar": 12182, "x{foo}{bar}": 12182,
		"lock:{user1000}.following": 3443, "{user1000}.followers": 3443,
		"foo{{bar}}zap": 4015, "{bar": 4015,
	} {
		if got := slotOf("", name); got != want {
			t.Errorf("%q is in slot %d, not %d", name, got, want)
		}
		for at := range len(name) {
			if got := slotOf(name[:at], name[at:]); got != want {
				t.Errorf("%q after %q is in slot %d, not %d", name[at:], name[:at], got, want)
			}
		}
	}
	if slotOf("", "a{}{b}") == slotOf("", "b") || slotOf("", "}{b}") != slotOf("", "b") {
		t.Error("braces are not read as Redis reads them")
	}
}

func TestTheTableOfTagsIsThatOfTheLayout(t *testing.T) {
	start := time.Now()
	tags := slotTags()
	t.Logf("made in %v", time.Since(start))
	for slot, tag := range tags {
		if int(slotOf("", tag)) != slot || tag == "" || len(tag) > 4 {
			t.Fatalf("slot %d has tag %q", slot, tag)
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(tags, " ")))
	// Daemons of all versions must have the same table.
	if got := hex.EncodeToString(sum[:8]); got != "65ea9f1abd0ac6d5" {
		t.Errorf("the table has changed: %s", got)
	}
}
