// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

const (
	// quietMinutes and outageMinutes are longer than the longest range and the longest for of the rules.
	quietMinutes  = 90
	outageMinutes = 180

	waitTimeout = 2 * time.Minute
	// pollInterval is the interval of scrapes. Each is evaluated in a process.
	pollInterval = 500 * time.Millisecond
)

// Scrape has the values of series by their names in PromQL, such as name{label="value"}.
type Scrape map[string]float64

// History has what a program served: before an outage, and then one scrape a minute.
type History struct {
	t       testing.TB
	url     string
	scrapes []Scrape
}

// NewHistory scrapes the program at url before the outage.
func NewHistory(t testing.TB, url string) *History {
	t.Helper()

	h := &History{t: t, url: url}
	h.Scrape()

	return h
}

// Scrape adds what the program serves now as the next minute.
func (h *History) Scrape() {
	h.t.Helper()

	scrape, err := read(h.t, h.url)
	if err != nil {
		h.t.Fatal(err)
	}

	h.scrapes = append(h.scrapes, scrape)
}

// Growth says what counters do while the outage lasts.
type Growth bool

// What counters do.
const (
	// Once is an outage that happens once: counters keep their value.
	Once Growth = false
	// Continues is an outage that continues: in each minute, counters increase as in the last one.
	Continues Growth = true
)

// WaitUntilFiring waits until the metrics differ from those before the outage, and until all alerts would fire if
// the outage lasted for hours. It fails the test if one of the alerts has fired before the outage. A program that
// does not answer has no metrics.
func (h *History) WaitUntilFiring(growth Growth, alerts, metrics []string) {
	h.t.Helper()

	program := findPromtool(h.t)

	for end := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		last, _ := read(h.t, h.url)
		problem := compareMetrics(h.scrapes[0], last, metrics)

		if problem == "" {
			problem = h.evaluate(program, last, growth, alerts)
		}

		if problem == "" {
			return
		}

		if time.Now().After(end) {
			h.t.Fatalf("the outage does not raise %v and move %v: %s\n%s", alerts, metrics, problem, h.describe(last))
		}
	}
}

// describe lists the series that the outage has changed.
func (h *History) describe(last Scrape) string {
	var out []string

	for series, value := range last {
		before, ok := h.scrapes[0][series]
		if (!ok || before != value) && !strings.Contains(series, "_bucket{") {
			out = append(out, fmt.Sprintf("%s %v, before %v", series, value, before))
		}
	}

	slices.Sort(out)

	return strings.Join(out, "\n")
}

// compareMetrics returns the first metric that has the same series and values in both scrapes, as text.
func compareMetrics(before, after Scrape, metrics []string) string {
	for _, metric := range metrics {
		if maps.Equal(seriesOf(before, metric), seriesOf(after, metric)) {
			return metric + " has not changed"
		}
	}

	return ""
}

// seriesOf returns the series of a metric, which may be a histogram.
func seriesOf(scrape Scrape, metric string) Scrape {
	out := Scrape{}

	for series, value := range scrape {
		name, _, _ := strings.Cut(series, "{")
		if name == metric || name == metric+"_count" {
			out[series] = value
		}
	}

	return out
}

func findPromtool(t testing.TB) string {
	t.Helper()

	program, err := exe.FindTool("watch", "promtool")
	if err != nil {
		t.Skip(err)
	}

	return program
}

// evaluate returns which alerts do not fire, or have fired before the outage.
func (h *History) evaluate(program string, last Scrape, growth Growth, alerts []string) string {
	h.t.Helper()

	if len(alerts) == 0 {
		return ""
	}

	dir := h.t.TempDir()
	rules := readRules(h.t, alerts)
	writeFile(h.t, filepath.Join(dir, "rules.yaml"), rules)

	var checks []any

	for _, alert := range alerts {
		// An alert of something that happened once ends after the range of its rule, so any minute counts.
		hasFired := func(minutes int) string {
			return fmt.Sprintf("group by (alertname) (max_over_time(ALERTS{alertname=%q,alertstate=\"firing\"}[%dm]))", alert, minutes)
		}
		fires := []any{map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1}}
		outage := len(h.scrapes) + outageMinutes
		checks = append(checks,
			map[string]any{"expr": hasFired(quietMinutes), "eval_time": fmt.Sprintf("%dm", quietMinutes), "exp_samples": []any{}},
			map[string]any{"expr": hasFired(outage), "eval_time": fmt.Sprintf("%dm", quietMinutes+outage), "exp_samples": fires})
	}

	file := filepath.Join(dir, "test.yaml")
	writeFile(h.t, file, marshal(h.t, map[string]any{
		"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{"interval": "1m", "input_series": h.series(last, growth, rules), "promql_expr_test": checks}},
	}))

	out, err := exec.CommandContext(h.t.Context(), program, "test", "rules", file).CombinedOutput() // #nosec G204 -- promtool
	if err != nil {
		return fmt.Sprintf("promtool: %v\n%s", err, bytes.TrimSpace(out))
	}

	return ""
}

// series returns the history of the metrics that the rules mention as promtool's input series.
func (h *History) series(last Scrape, growth Growth, rules []byte) []any {
	all := append(slices.Clone(h.scrapes), last)
	names := map[string]bool{}

	for _, scrape := range all {
		for name := range scrape {
			if metric, _, _ := strings.Cut(name, "{"); bytes.Contains(rules, []byte(metric)) {
				names[name] = true
			}
		}
	}

	var out []any

	for _, name := range slices.Sorted(maps.Keys(names)) {
		values := []string{formatSample(all[0], name, 0, quietMinutes)}
		for _, scrape := range all[1 : len(all)-1] {
			values = append(values, formatSample(scrape, name, 0, 0))
		}

		step := 0.0
		if growth == Continues && isCounter(name) {
			step = last[name] - all[len(all)-2][name]
		}

		values = append(values, formatSample(last, name, step, outageMinutes))
		out = append(out, map[string]any{"series": name, "values": strings.Join(values, " ")})
	}

	return out
}

// formatSample formats a sample and its repetitions, which increase by step. A series that is missing is stale.
func formatSample(scrape Scrape, name string, step float64, repetitions int) string {
	value, ok := scrape[name]
	if !ok || math.IsNaN(value) {
		return fmt.Sprintf("stale _x%d", repetitions+1)
	}

	format := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if repetitions == 0 {
		return format(value)
	}

	return fmt.Sprintf("%s+%sx%d", format(value), format(step), repetitions)
}

// isCounter returns whether a series is that of a counter or histogram.
func isCounter(series string) bool {
	name, _, _ := strings.Cut(series, "{")

	return slices.ContainsFunc([]string{"_total", "_bucket", "_count", "_sum"}, func(suffix string) bool {
		return strings.HasSuffix(name, suffix)
	})
}

// readRules returns the shipped rules of alerts as a file of Prometheus. Its evaluation takes a fraction of the time
// that all rules take.
func readRules(t testing.TB, alerts []string) []byte {
	t.Helper()

	root, err := procrun.FindModuleRoot()
	if err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "prometheusrule.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	type group struct {
		Name  string           `json:"name"`
		Rules []map[string]any `json:"rules"`
	}

	var rule struct {
		Spec struct {
			Groups []group `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &rule); err != nil {
		t.Fatal(err)
	}

	for i := range rule.Spec.Groups {
		all := &rule.Spec.Groups[i].Rules
		*all = slices.DeleteFunc(*all, func(rule map[string]any) bool {
			name, isAlert := rule["alert"].(string)

			return !isAlert || !slices.Contains(alerts, name)
		})
	}

	return marshal(t, rule.Spec)
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()

	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}

	return text
}

func writeFile(t testing.TB, path string, text []byte) {
	t.Helper()

	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// read scrapes a program's own metrics.
func read(t testing.TB, url string) (Scrape, error) {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}

	response, err := (&http.Client{Timeout: waitTimeout, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body was only read

	parser := expfmt.NewTextParser(model.LegacyValidation)

	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}

	out := Scrape{}

	for name, family := range families {
		if !strings.HasPrefix(name, "hyperfleet_") && !strings.HasPrefix(name, "kubevirt_") {
			continue
		}

		for _, metric := range family.GetMetric() {
			out.add(name, metric)
		}
	}

	return out, nil
}

// add adds the series of a metric.
func (s Scrape) add(name string, metric *dto.Metric) {
	histogram := metric.GetHistogram()
	if histogram == nil {
		s[formatSeries(name, metric)] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()

		return
	}

	for _, bucket := range histogram.GetBucket() {
		bound := fmt.Sprintf("le=%q", formatBound(bucket.GetUpperBound()))
		s[formatSeries(name+"_bucket", metric, bound)] = float64(bucket.GetCumulativeCount())
	}

	s[formatSeries(name+"_count", metric)] = float64(histogram.GetSampleCount())
	s[formatSeries(name+"_sum", metric)] = histogram.GetSampleSum()
}

func formatBound(bound float64) string {
	if math.IsInf(bound, 1) {
		return "+Inf"
	}

	return strconv.FormatFloat(bound, 'g', -1, 64)
}

func formatSeries(name string, metric *dto.Metric, labels ...string) string {
	for _, label := range metric.GetLabel() {
		labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
	}

	return name + "{" + strings.Join(labels, ",") + "}"
}
