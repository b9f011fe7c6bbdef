//go:build nootel

package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/audit"
)

// tracing exports nothing: the program was built without OpenTelemetry.
type tracing struct{}

func (m *Main) newTracing(context.Context, *zap.Logger) (t tracing) { return t }

func (tracing) take() func(audit.Span) { return nil }

func (tracing) close() {}
