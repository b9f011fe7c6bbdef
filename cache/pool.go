package cache

// maxFree bounds the number of unused objects that a pool takes back.
const maxFree = 256

// pool has unused objects of one kind, which are zero except for what their kind keeps.
type pool[T any] struct{ free []*T }

func (p *pool[T]) get() *T {
	n := len(p.free)
	if n == 0 {
		return new(T)
	}
	x := p.free[n-1]
	p.free = p.free[:n-1]
	return x
}

func (p *pool[T]) put(x *T) {
	if len(p.free) < maxFree {
		p.free = append(p.free, x)
	}
}
