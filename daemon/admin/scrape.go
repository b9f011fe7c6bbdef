package admin

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protodelim"
)

// scrape answers with the metrics of from, as protobuf if the client accepts that, because text has
// no native histograms. The parameter name[] selects metrics. The handler of Prometheus' library
// does the same, but would make the program larger by 270 KB.
func (a *Server) scrape(from prometheus.Gatherer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		families, err := from.Gather()
		if err != nil {
			a.cfg.Log.Error("metrics unavailable", zap.String("event", "admin_failed"),
				zap.Error(err))
			http.Error(w, fmt.Sprintf("gather metrics: %v", err), http.StatusInternalServerError)
			return
		}
		if names := r.URL.Query()["name[]"]; len(names) > 0 {
			families = slices.DeleteFunc(families,
				func(f *dto.MetricFamily) bool { return !slices.Contains(names, f.GetName()) })
		}
		format := expfmt.NegotiateAccept(r.Header, expfmt.NewFormat(expfmt.TypeProtoDelim),
			expfmt.NewFormat(expfmt.TypeTextPlain))
		w.Header().Set("Content-Type", string(format))
		w.Header().Add("Vary", "Accept, Accept-Encoding")
		if !acceptsGzip(r.Header) {
			_ = write(w, families, format)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		zw := gzips.Get().(*gzip.Writer)
		defer gzips.Put(zw)
		zw.Reset(w)
		if write(zw, families, format) == nil {
			_ = zw.Close()
		}
	}
}

// gzips keeps compressors between scrapes. A new one has 800 KB.
var gzips = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// acceptsGzip reports whether a client accepts a compressed answer.
func acceptsGzip(h http.Header) bool {
	for _, coding := range strings.Split(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.TrimSpace(name) == "gzip" {
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return err != nil || q > 0
		}
	}
	return false
}

// write fails only if the client is gone.
func write(w io.Writer, families []*dto.MetricFamily, format expfmt.Format) error {
	for _, f := range families {
		f = model.EscapeMetricFamily(f, format.ToEscapingScheme())
		var err error
		if format.FormatType() == expfmt.TypeProtoDelim {
			_, err = protodelim.MarshalTo(w, f)
		} else {
			_, err = expfmt.MetricFamilyToText(w, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
