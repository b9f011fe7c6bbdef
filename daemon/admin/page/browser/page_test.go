package browser

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// serve runs a daemon and returns a client of its, and the page's address.
func serve(t *testing.T) (*client.Client, string) {
	t.Helper()
	c, address, _ := serveUntil(t)
	return c, address
}

func serveUntil(t *testing.T) (_ *client.Client, address string, stop func()) {
	t.Helper()
	store, err := embedded.Open(embedded.Options{Clock: renewer.Boottime})
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, store, "")
}

// serveOn runs a daemon on a store, which it closes, under the name of a host.
func serveOn(t *testing.T, store upstream.Store, host string) (_ *client.Client,
	address string, stop func()) {
	t.Helper()
	addr := freeAddr(t)
	socket := filepath.Join(t.TempDir(), "s")
	d, err := daemon.Listen(daemon.Config{Socket: socket, AdminListen: addr,
		Version: "test", Host: host,
		Serving: daemon.Serving{Stores: []daemon.StoreConfig{{Name: "store", Store: store}}}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(context.Background()) }()
	stop = sync.OnceFunc(func() {
		d.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = store.Close()
	})
	t.Cleanup(stop)
	return dial(t, socket, client.Options{Name: "a program", Label: "label"}),
		"http://" + addr + "/", stop
}

func dial(t *testing.T, socket string, o client.Options) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), socket, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// freeAddr is where nobody listens, most likely until the daemon does.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func take(t *testing.T, c *client.Client, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, err := c.Acquire(t.Context(), client.AcquireArgs{Key: k, Owner: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// onRedis is a store for one more host.
func onRedis(t *testing.T, server *testserver.Redis) upstream.Store {
	t.Helper()
	cfg, err := redis.Parse(server.URL() + "?timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	store, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestTheHolderOnAnotherHostIsNamed(t *testing.T) {
	const host = `web-3 <img src=x onerror="document.title='run'">`
	server := testserver.StartRedis(t)
	there, _, _ := serveOn(t, onRedis(t, server), host)
	take(t, there, "k")
	here, address, _ := serveOn(t, onRedis(t, server), "web-4")
	waiting, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := here.Acquire(waiting, client.AcquireArgs{Key: "k", Owner: 1, Wait: client.Forever})
		done <- err
	}()
	b := open(t, 1280, 900)
	b.visit(address)
	b.until("the holder is named", fmt.Sprintf(`document.querySelector("#waiters-rows td[data-name='Held by'] bdi")?.textContent === %q`, host))
	b.shoot("holder")
	if eval[bool](b, `document.title === "run" || document.querySelector("#waiters-rows img") !== null`) {
		t.Error("the host's name was run")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("two hosts have k")
	}
}

func TestFilterAndSort(t *testing.T) {
	c, address := serve(t)
	take(t, c, "c", "a", "b", "x:1", "x:2")
	b := open(t, 1280, 900)
	b.visit(address)
	b.shoot("wide")
	if got := b.keys(" "); got != "c a b x:1 x:2" {
		t.Errorf("%q", got)
	}
	b.do(chromedp.SendKeys(chromedp.CSS("#search"), ":"+kb.Enter))
	b.until("it is filtered", `document.querySelectorAll("#holds-rows tr").length === 2 && location.search.includes("search=%3A")`)
	for _, tc := range []struct{ sorted, keys string }{{"ascending", "x:1 x:2"},
		{"descending", "x:2 x:1"}} {
		b.do(chromedp.Click(chromedp.CSS(`#holds thead th:first-child a`)))
		b.until("it is sorted", fmt.Sprintf(`document.querySelector("#holds thead th:first-child").ariaSort === %q && document.readyState === "complete"`, tc.sorted))
		if got := b.keys(" "); got != tc.keys {
			t.Errorf("%s: %q", tc.sorted, got)
		}
	}
	b.visit(address + "?prefix=x:&sort=key")
	b.do(chromedp.Click(chromedp.CSS(`form a`)))
	b.until("all keys are back", `document.querySelectorAll("#holds-rows tr").length === 5`)
}

func TestUpdatesComeWithoutAReload(t *testing.T) {
	c, address := serve(t)
	b := open(t, 1280, 400)
	b.visit(address)
	eval[bool](b, `window.mine = true; document.getElementById("search").focus(); scrollTo(0, 150); true`)
	b.do(chromedp.KeyEvent("typed"))
	take(t, c, "arrives")
	b.until("the new lock is shown", `document.querySelector("#holds-rows").textContent.includes("arrives")`)
	b.until("and in the title", `document.title.startsWith("1 held")`)
	if !eval[bool](b, `window.mine && document.activeElement.id === "search" && document.activeElement.value === "typed" && scrollY === 150`) {
		t.Errorf("focus, text or place are not what they were: %s",
			eval[string](b, `[window.mine, document.activeElement.id, document.activeElement.value, scrollY].join()`))
	}
	eval[bool](b, `getSelection().selectAllChildren(document.querySelector("#holds-rows bdi")); true`)
	take(t, c, "more")
	b.until("other parts go on", `document.getElementById("figures").textContent.includes("Held2")`)
	if got := eval[string](b, `getSelection().toString()`); got != "arrives" {
		t.Errorf("the selection is %q", got)
	}
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	if got := eval[string](b, `document.getElementById("pause").getAttribute("aria-pressed") + document.getElementById("status").textContent`); got != "truePaused." {
		t.Error(got)
	}
}

func TestAHostileKeyDoesNotRun(t *testing.T) {
	c, address := serve(t)
	evil := []string{`<img src=x onerror="document.title='run'">`,
		`</script><script>document.title='run'</script>`, `<svg/onload=alert(1)>`,
		`" autofocus onfocus="alert(1)`, "\u202e\u2066rtl", strings.Repeat("W", 512)}
	take(t, c, evil...)
	for _, width := range []int{1280, 360} {
		b := open(t, width, 740)
		for _, query := range []string{"", "?prefix=" + url.QueryEscape(evil[0]),
			"?search=" + url.QueryEscape(evil[3]),
			"?key=" + url.QueryEscape(evil[0]), "?key=" + url.QueryEscape(evil[3]),
			"?key=" + url.QueryEscape(evil[5])} {
			b.visit(address + query)
			if got := eval[string](b, `document.title`); !strings.Contains(got, "held") {
				t.Errorf("the title is %q", got)
			}
		}
		b.visit(address)
		at := eval[string](b, `document.getElementById("about").textContent`)
		b.until("it was brought up to date once", fmt.Sprintf(`document.getElementById("about").textContent !== %q`, at))
		if got := b.keys("|"); got != strings.Join(evil, "|") {
			t.Errorf("%q", got)
		}
		if n := eval[int](b, `document.querySelectorAll("main img, main script, [onload], [onerror], [autofocus]").length`); n > 0 {
			t.Errorf("%d elements are a key's", n)
		}
	}
}

type focus struct {
	Name    string
	Visible bool
}

func TestTheKeyboardReachesAll(t *testing.T) {
	c, address := serve(t)
	take(t, c, "a", "b")
	for _, width := range []int{1280, 360} {
		b := open(t, width, 740)
		b.visit(address + "?prefix=a")
		const name = `((e) => [e.tagName, e.id, e.getAttribute("href"), e.textContent.slice(0, 20)].join(" "))`
		want := eval[[]string](b, `[...document.querySelectorAll("a, button, input:not([type=hidden]), select")].filter(e => !e.closest("noscript")).map(`+name+`)`)
		seen := map[string]bool{}
		for range len(want) {
			b.do(chromedp.KeyEvent(kb.Tab))
			at := eval[focus](b, `(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
				return {Name: `+name+`(e), Visible: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 &&
					r.width > 0 && r.top >= 0 && r.left >= 0 && r.bottom <= innerHeight && r.right <= innerWidth + 1}; })()`)
			if !at.Visible {
				t.Errorf("%d wide: focus on %q cannot be seen", width, at.Name)
			}
			seen[at.Name] = true
		}
		for _, w := range want {
			if !seen[w] {
				t.Errorf("%d wide: tabbing does not reach %q; %v", width, w, seen)
			}
		}
		// The skip link, and a heading's, by the keyboard alone.
		b.visit(address)
		b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
		b.until("it skips", `document.activeElement.id === "holds"`)
		b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
		b.until("it sorts", `location.search.includes("sort=key")`)
	}
}

func TestAPhoneAndTheDark(t *testing.T) {
	c, address := serve(t)
	take(t, c, "order:42", "a/rather/long/key/with/no/space/in/it/that/does/not/fit/into/one/line")
	go func() { _, _ = c.Acquire(t.Context(), client.AcquireArgs{Key: "order:42", Owner: 2, Wait: -1}) }()
	b := open(t, 360, 740)
	colours := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		b.visit(address)
		b.until("somebody waits", `document.querySelector("#waiters-rows th") !== null`)
		b.shoot("phone-" + scheme)
		colours[eval[string](b, `getComputedStyle(document.body).backgroundColor`)] = true
		if dim := eval[[]string](b, contrast); len(dim) > 0 {
			t.Errorf("%s: too little contrast: %v", scheme, dim)
		}
	}
	if len(colours) != 2 {
		t.Errorf("light and dark have %v", colours)
	}
	if got := eval[string](b, `getComputedStyle(document.querySelector("#holds-rows td[data-name=Held]"), "::before").content`); got != `"Held" ": "` && got != `"Held: "` {
		t.Errorf("a card's cell says %s", got)
	}
}

// contrast is the texts whose colour is too near to what is behind them: 4.5 to 1 is asked for.
const contrast = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => { const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return "rgb(255,255,255)"; };
	return [...document.querySelectorAll("body *")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.offsetParent !== null).filter(e => {
		const a = light(getComputedStyle(e).color), b = light(back(e));
		return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
	}).map(e => e.outerHTML.slice(0, 80));
})()`

func TestWithoutAScript(t *testing.T) {
	c, address := serve(t)
	take(t, c, "a", "b")
	b := open(t, 1280, 900)
	call(b, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS("noscript a")),
		chromedp.WaitNotVisible(chromedp.CSS("#pause")),
		chromedp.Click(chromedp.CSS("noscript a")),
		chromedp.WaitVisible(chromedp.Search(`//noscript/a[text()="Stop refreshing"]`)),
		chromedp.SendKeys(chromedp.CSS("#search"), "b"+kb.Enter),
		chromedp.WaitVisible(chromedp.Search(`//a[text()="All keys"]`)),
		chromedp.WaitNotPresent(chromedp.Search(`//tbody[@id="holds-rows"]//bdi[text()="a"]`)))
	at, err := chromedp.Run(b, chromedp.Location())
	if err != nil || !strings.Contains(at, "search=b") || !strings.Contains(at, "refresh=on") {
		t.Error(at, err)
	}
}

func TestManyLocksMakeNoLargerPage(t *testing.T) {
	c, address := serve(t)
	batches, held := 20, "20,000"
	if os.Getenv("LOCKSIDECAR_TEST_LONG") != "" {
		batches, held = 1000, "1,000,000"
	}
	for i := range batches {
		keys := make([]string, 1000)
		for j := range keys {
			keys[j] = fmt.Sprintf("order:%03d:%03d", i, j)
		}
		if _, err := c.AcquireMany(t.Context(), keys, client.AcquireArgs{Owner: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for query, most := range map[string]int{"": 64 << 10, "?sort=key": 64 << 10,
		"?limit=1000": 768 << 10} {
		r, err := http.Get(address + query)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || len(text) > most {
			t.Errorf("%q: %d bytes, %v", query, len(text), err)
		}
	}
	b := open(t, 360, 740)
	b.visit(address + "?sort=key&limit=200")
	if got := eval[string](b, `document.querySelector("#figures dd b").textContent`); got != held {
		t.Error(got)
	}
	if got := b.keys(" "); !strings.HasPrefix(got, "order:000:000 order:000:001 ") ||
		strings.Count(got, " ") != 199 {
		t.Error(got)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAPageOutlivesItsDaemon(t *testing.T) {
	_, address, stop := serveUntil(t)
	b := open(t, 1280, 900)
	b.visit(address)
	b.expect("ERR_CONNECTION_REFUSED")
	stop()
	b.until("it says so", `document.getElementById("status").textContent.includes("does not answer")`)
	if got := eval[string](b, `document.querySelector("#stores th bdi").textContent`); got != "store" {
		t.Error("and shows nothing any more")
	}
}

func TestAKeyHasAPageOfItsOwn(t *testing.T) {
	c, address := serve(t)
	const key = "order:42/é?&<b>"
	take(t, c, key, key+"2")
	waiting, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Acquire(waiting, client.AcquireArgs{Key: key, Owner: 2, Wait: client.Forever})
		done <- err
	}()
	b := open(t, 1280, 900)
	b.visit(address)
	b.until("its waiter is shown", `document.querySelector("#holds-rows .warning")?.textContent === "1"`)
	b.shoot("contended")
	b.do(chromedp.Click(chromedp.CSS("#holds-rows th a")))
	b.until("its holder and its queue are shown",
		fmt.Sprintf(`document.querySelector("#h-key")?.textContent === %q &&
		document.querySelectorAll("#holds-rows tr").length === 1 && document.querySelector("#waiters-rows td[data-name=Client] bdi") !== null`, key))
	b.shoot("key")
	if got := eval[string](b, `document.querySelector("#holds-rows abbr").title`); len(got) < 16 {
		t.Errorf("the fence is %q", got)
	}
	b.do(chromedp.Click(chromedp.CSS(".back a")))
	b.until("all locks are back", `document.querySelectorAll("#holds-rows tr").length === 2`)
	cancel()
	if err := <-done; err == nil {
		t.Error("two owners have the key")
	}
}
