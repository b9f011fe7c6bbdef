package redis

import (
	"strings"
	"sync"
)

// Names beside the locks' own begin with siblingPrefix. The tag follows, which puts them into the
// slot of the lock. Without a cluster it is empty.
const (
	siblingPrefix = "locksidecar:"
	hintChannel   = siblingPrefix + "hint:"
)

// permitsKind is in the name of the set of a semaphore's permits. The scripts have it too.
const permitsKind = "permits:"

// slotCount is the number of hash slots of a cluster.
const slotCount = 16384

var crcTable = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()

func crc16(crc uint16, s string) uint16 {
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}

// slotOf returns the slot of the name prefix + key. If the name has a part between its first {
// and the next }, and the part is not empty, the slot is that part's.
func slotOf(prefix, key string) uint16 {
	if strings.IndexByte(prefix, '{') >= 0 || strings.IndexByte(key, '{') >= 0 {
		name := prefix + key
		if _, in, ok := strings.Cut(name, "{"); ok {
			if tag, _, ok := strings.Cut(in, "}"); ok && tag != "" {
				return crc16(0, tag) % slotCount
			}
		}
	}
	return crc16(crc16(0, prefix), key) % slotCount
}

// slotOf returns the slot of the name prefix + key, which is 0 without a cluster.
func (s *Store) slotOf(prefix, key string) uint16 {
	if s.cluster == nil {
		return 0
	}
	return slotOf(prefix, key)
}

// siblings returns the beginning of the names beside <prefix><key>.
func (s *Store) siblings(name string) string { return s.names[s.slotOf("", name)].siblings }

// slotNames has the names beside the locks of one slot.
type slotNames struct {
	siblings, fence, queued string
}

var standaloneNames = [1]slotNames{namesOf("")}

func namesOf(tag string) slotNames {
	s := siblingPrefix + "{" + tag + "}:"
	return slotNames{siblings: s, fence: s + "fence", queued: s + "queued"}
}

const tagAlphabet = "0123456789abcdefghijklmnopqrstuvwxyz"

// slotTags returns the first tag of each slot, in the order of length and then of the alphabet. The
// table is part of the layout.
func slotTags() []string {
	tags := make([]string, slotCount)
	left := slotCount
	for size := 1; left > 0; size++ {
		digits, word := make([]int, size), []byte(strings.Repeat(tagAlphabet[:1], size))
		for ok := true; ok && left > 0; ok = count(digits, word) {
			if at := &tags[crc16(0, string(word))%slotCount]; *at == "" {
				*at = string(word)
				left--
			}
		}
	}
	return tags
}

// count advances word to the next one of its length. It reports whether there is one.
func count(digits []int, word []byte) bool {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = (digits[i] + 1) % len(tagAlphabet)
		word[i] = tagAlphabet[digits[i]]
		if digits[i] != 0 {
			return true
		}
	}
	return false
}

// clusterNames returns the table of all slots, which is made on first use.
var clusterNames = sync.OnceValue(func() []slotNames {
	names := make([]slotNames, slotCount)
	for slot, tag := range slotTags() {
		names[slot] = namesOf(tag)
	}
	return names
})

// reserved reports whether a lock with this key would collide with siblings.
func (s *Store) reserved(key string) bool {
	if len(s.cfg.Prefix) >= len(siblingPrefix) {
		return false // Parse refuses a reserved prefix.
	}
	return strings.HasPrefix(s.cfg.Prefix+key[:min(len(key), len(siblingPrefix))], siblingPrefix)
}
