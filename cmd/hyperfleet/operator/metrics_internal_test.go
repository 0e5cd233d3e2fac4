// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const metricsPage = "../../../docs/reference/metrics.md"

var described = regexp.MustCompile(`fqName: "([a-z0-9_]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// recorder is a registry that records the names and labels of all metrics.
type recorder struct {
	*prometheus.Registry

	mu     sync.Mutex
	labels map[string]string
}

// Register records the metrics that the collector describes.
func (r *recorder) Register(collector prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)

	go func() {
		defer close(descs)

		collector.Describe(descs)
	}()

	for desc := range descs {
		match := described.FindStringSubmatch(desc.String())
		if len(match) == 0 || (!strings.HasPrefix(match[1], "hyperfleet_") && !strings.HasPrefix(match[1], "kubevirt_")) {
			continue
		}

		labels := strings.FieldsFunc(match[3], func(c rune) bool { return c == ',' || c == ' ' })
		for constant := range strings.SplitSeq(match[2], ",") {
			if name, _, ok := strings.Cut(constant, "="); ok {
				labels = append(labels, name)
			}
		}

		slices.Sort(labels)
		r.mu.Lock()
		r.labels[match[1]] = strings.Join(labels, " ")
		r.mu.Unlock()
	}

	return r.Registry.Register(collector)
}

// MustRegister registers each collector.
func (r *recorder) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		if err := r.Register(collector); err != nil {
			panic(err)
		}
	}
}

// metricsOnPage returns the metrics of the reference page with their labels.
func metricsOnPage(t *testing.T) map[string]string {
	t.Helper()

	raw, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}

	word := regexp.MustCompile("`([a-z0-9_]+)`")
	out := map[string]string{}

	current, former, isFound := strings.Cut(string(raw), "\n## Former names\n")
	if !isFound {
		t.Fatalf("%s has no section with former names", metricsPage)
	}

	for line := range strings.Lines(current) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}

		var labels []string
		for _, match := range word.FindAllStringSubmatch(cells[2], -1) {
			labels = append(labels, match[1])
		}

		slices.Sort(labels)

		for _, match := range word.FindAllStringSubmatch(cells[1], -1) {
			out[match[1]] = strings.Join(labels, " ")
		}
	}

	// Rows with three cells name a label that a metric still has beside the new one.
	formerLabel := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| `([a-z]+)`[^|]*\\| [^|]*\\|$")
	for _, match := range formerLabel.FindAllStringSubmatch(former, -1) {
		labels := append(strings.Fields(out[match[1]]), match[2])
		slices.Sort(labels)
		out[match[1]] = strings.Join(labels, " ")
	}

	return out
}

// TestMetricsPage checks that the operator has exactly the metrics and labels of its reference page.
func TestMetricsPage(t *testing.T) {
	registry := &recorder{Registry: prometheus.NewRegistry(), labels: map[string]string{}}
	before := ctrlmetrics.Registry
	ctrlmetrics.Registry = registry

	t.Cleanup(func() { ctrlmetrics.Registry = before })

	cfg := config.Default()
	cfg.Namespace = env.Namespace(t)
	cfg.LeaderElection.Enabled = false
	cfg.Metrics.BindAddress, cfg.Health.BindAddress, cfg.Webhooks.BindAddress = "0", "0", "0"
	cfg.Bridge.CSRApproval = true

	ctx, stop := context.WithCancel(t.Context())
	log := slog.New(slog.NewJSONHandler(stopOnStart{stop}, nil))

	if err := run(ctx, cfg, rest.CopyConfig(env.Config), log); err != nil {
		t.Fatal(err)
	}

	registry.mu.Lock()
	defer registry.mu.Unlock()

	// This metric is registered when the CRDs of HyperShift are installed. They are not installed here.
	registry.labels["hyperfleet_bridge_csr_decisions_total"] = "reason result"

	if diff := cmp.Diff(metricsOnPage(t), registry.labels); diff != "" {
		t.Errorf("metrics and labels (-%s +operator):\n%s", metricsPage, diff)
	}

	if len(registry.labels) < 40 {
		t.Errorf("%d metrics: %v", len(registry.labels), slices.Sorted(maps.Keys(registry.labels)))
	}
}

// stopOnStart is a log writer that stops the operator when its setup is complete.
type stopOnStart struct{ stop func() }

// Write calls stop for the line that the operator logs at the end of its setup.
func (s stopOnStart) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("operator starts")) {
		s.stop()
	}

	return len(line), nil
}
