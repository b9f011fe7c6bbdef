package storeurl

import "testing"

func TestRedact(t *testing.T) {
	for raw, want := range map[string]string{
		"memory:":                       "memory:",
		"redis://h":                     "redis://h",
		"redis://u@h/0":                 "redis://u@h/0",
		"redis://u:sesame@h,i:2/0?a=b":  "redis://u:xxxxx@h,i:2/0?a=b",
		"redis://:sesame@h":             "redis://:xxxxx@h",
		"redis://u:ses@me@h":            "(not a URL)",
		"redis://u:ses/me@h":            "(not a URL)",
		"redis://u:ses?me@h":            "(not a URL)",
		"u:sesame@h":                    "(not a URL)",
		"words":                         "words",
		"unix:///run/s?password_file=/": "unix:///run/s?password_file=/",
	} {
		if got := Redact(raw); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func TestWith(t *testing.T) {
	for _, c := range []struct{ raw, user, pw, file, want string }{
		{"redis://h", "", "", "", "redis://h"},
		{"redis://h,i", "u", "p/w:@", "", "redis://u:p%2Fw%3A%40@h,i"},
		{"redis://h", "", "pw", "", "redis://:pw@h"},
		{"redis://u@h", "other", "pw", "", "redis://u:pw@h"},
		{"redis://u:in@h", "", "pw", "", "redis://u:in@h"},
		{"redis://u@h?db=3", "", "", "/a b", "redis://u@h?db=3&password_file=%2Fa+b"},
		{"unix:///s", "", "", "/f", "unix:///s?password_file=%2Ff"},
	} {
		got := With(c.raw, c.user, c.pw, c.file)
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		u, err := Parse(got, Spec{Schemes: []string{"redis"}, Port: "1",
			Params: map[string]func(string) error{"db": Text(new(string))}})
		if c.raw[0] == 'r' && (err != nil || c.pw != "" && u.User+string(u.Password) == "") {
			t.Errorf("%s: %v", got, err)
		}
		if err == nil && c.pw == "p/w:@" && string(u.Password) != c.pw {
			t.Errorf("the password has become %q", string(u.Password))
		}
	}
}
