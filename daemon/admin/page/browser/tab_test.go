package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// patience is how long the browser may take for anything.
const patience = 2 * time.Minute

// chromium is the browser of all tests. It starts with the first tab and ends in TestMain.
var chromium struct {
	ctx   context.Context
	close func()
}

// startChromium starts the browser unless it runs.
func startChromium(t *testing.T) context.Context {
	t.Helper()
	if chromium.ctx != nil {
		return chromium.ctx
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not there: apt-get install chromium")
	}
	dir, err := os.MkdirTemp("", "chromium-")
	if err != nil {
		t.Fatal(err)
	}
	alloc, end := chromedp.NewExecAllocator(context.Background(),
		append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
			chromedp.NoSandbox, chromedp.UserDataDir(dir))...)
	ctx, quit := chromedp.NewContext(alloc)
	chromium.close = func() {
		_ = chromedp.Cancel(ctx)
		quit()
		end()
		_ = os.RemoveAll(dir)
	}
	if err := chromedp.Do(ctx); err != nil {
		chromium.close()
		chromium.close = nil
		t.Fatal(err)
	}
	chromium.ctx = ctx
	return ctx
}

// tests runs the tests and then ends the browser.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if chromium.close != nil {
		chromium.close()
	}
	return code
}

// tab is a page with a profile of its own. What it complains of on the console, violations of
// its policy among it, fails the test.
type tab struct {
	context.Context
	t        *testing.T
	mu       sync.Mutex
	expected string // what may be complained of; guarded by mu
}

func open(t *testing.T, width, height int) *tab {
	t.Helper()
	ctx, quit := chromedp.NewContext(startChromium(t), chromedp.WithNewBrowserContext())
	b := &tab{Context: ctx, t: t}
	if err := chromedp.Do(ctx); err != nil { // it begins
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	console := chromedp.Console(ctx)
	wg.Go(func() {
		for m, err := range console {
			if err != nil {
				return
			}
			b.complain(m.String() + " " + m.URL)
		}
	})
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		quit()
		wg.Wait()
	})
	b.size(width, height)
	return b
}

func (b *tab) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expected == "" || !strings.Contains(text, b.expected) {
		b.t.Errorf("the browser complains: %s", text)
	}
}

func (b *tab) expect(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = text
}

func (b *tab) size(width, height int) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: int64(width), Height: int64(height),
		DeviceScaleFactor: 1, Mobile: width < 500})
}

// call sends the browser a command of its protocol.
func call[P, R any](b *tab, cmd cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b, cmd, params); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// eval is what js comes to on the page.
func eval[T any](b *tab, js string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		b.t.Fatalf("%v: %s", err, js)
	}
	return v
}

// until waits for js to be true, on this page or the one that it leads to.
func (b *tab) until(what, js string) {
	b.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(b, patience)
		// an error while it goes from one to the other
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](js))
		cancel()
		if ok && err == nil {
			return
		}
	}
	b.t.Fatalf("did not come about: %s: %s", what, eval[string](b, `document.body.innerText`))
}

// visit goes to a page, and looks for what is wrong with any of them.
func (b *tab) visit(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address), chromedp.WaitReady(chromedp.CSS("footer")))
	wide := eval[[]string](b, `[...document.querySelectorAll("body *")].filter(e => !e.closest(".skip, .hidden") && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))`)
	if eval[bool](b, `document.documentElement.scrollWidth > innerWidth`) || len(wide) > 0 {
		b.t.Errorf("%s is wider than the window: %v", address, wide)
	}
}

// keys are those that the table of holds shows.
func (b *tab) keys(between string) string {
	b.t.Helper()
	return strings.Join(eval[[]string](b, `[...document.querySelectorAll("#holds-rows th bdi")].map(e => e.textContent)`), between)
}

// shoot saves a picture of the page in the directory that SCREENSHOTS names, if it is set.
func (b *tab) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
