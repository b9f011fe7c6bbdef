package mysql

// WithoutReturning makes the store read rows besides writing them, as it does on
// servers whose writes cannot return them.
func WithoutReturning() Option { return func(s *Store) { s.plain = true } }
