// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/otlp"
)

const (
	waitTimeout = time.Minute
	// exportError is the log message for an export that fails.
	exportError = "failed to export spans"
	token       = "t0ken-that-nobody-is-told"
	// headers are headers as users configure them.
	headers = "Authorization=Bearer%20" + token + ",x-tenant=acme%2Fci"
)

// setEnvironment sets the variables of tracing, and unsets those that the environment of the test may have.
func setEnvironment(t *testing.T, pairs ...string) {
	t.Helper()

	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
			_ = os.Unsetenv(name) // Setenv restores it at the end of the test
		}
	}

	t.Setenv(tracing.EnvEnabled, "true")

	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

// program is a program that calls Start.
type program struct {
	t           *testing.T
	log, output *capture.Buffer
	stop        func()
}

func startSpan(t *testing.T, clk clock.PassiveClock) *program {
	t.Helper()

	p := &program{t: t, log: &capture.Buffer{}, output: &capture.Buffer{}}

	stop, err := tracing.Start(t.Context(), tracing.Options{
		Service: "hyperfleet-test", Version: "v1.2.3", Log: log.New(p.log, log.Options{}), Output: p.output, Clock: clk,
	})
	if err != nil {
		t.Fatal(err)
	}

	p.stop = func() {
		t.Helper()

		ended := make(chan struct{})

		go func() {
			stop()
			close(ended)
		}()

		select {
		case <-ended:
		case <-time.After(waitTimeout):
			t.Fatal("the shutdown waits for the receiver")
		}
	}
	t.Cleanup(p.stop)

	return p
}

// emitSpans emits a span with a child span, and returns the span context of the child.
func emitSpans(ctx context.Context) trace.SpanContext {
	tracer := otel.Tracer("test")

	ctx, outer := tracer.Start(ctx, "outer")
	defer outer.End()

	_, inner := tracer.Start(ctx, "inner")
	defer inner.End()

	return inner.SpanContext()
}

func variableNames(spans []otlp.Span) string {
	out := make([]string, len(spans))
	for i := range spans {
		out[i] = spans[i].Name
	}

	return strings.Join(out, " ")
}

// listReceivers returns the receivers by the value of OTEL_EXPORTER_OTLP_PROTOCOL.
func listReceivers() map[string]func(testing.TB) *otlp.Receiver {
	return map[string]func(testing.TB) *otlp.Receiver{"grpc": otlp.StartGRPC, "http/protobuf": otlp.StartHTTP}
}

func TestSpansReachTheReceiver(t *testing.T) {
	for protocol, receive := range listReceivers() {
		for name, variables := range map[string]func(url string) []string{
			"for all signals": func(url string) []string {
				return []string{
					"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_EXPORTER_OTLP_HEADERS=" + headers,
				}
			},
			"for traces, which takes precedence": func(url string) []string {
				return []string{
					"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + url + otlp.Path, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=" + protocol,
					"OTEL_EXPORTER_OTLP_TRACES_HEADERS=" + headers, "OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
					"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
				}
			},
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				if protocol == "grpc" {
					// With this protocol, the endpoint can have a path.
					variables = withoutPath(variables)
				}

				receiver := receive(t)
				setEnvironment(t, variables(receiver.URL)...)

				p := startSpan(t, nil)
				last := emitSpans(t.Context())
				p.stop()

				spans := receiver.Spans()
				if variableNames(spans) != "inner outer" || spans[0].Parent != spans[1].ID || spans[1].Parent != "" ||
					spans[0].TraceID != spans[1].TraceID || spans[0].TraceID != last.TraceID().String() {
					t.Fatalf("spans %+v", spans)
				}

				if spans[0].Service != "hyperfleet-test" || !strings.Contains(spans[0].Text, "v1.2.3") {
					t.Errorf("resource of %s", spans[0].Text)
				}

				if got := receiver.Header("Authorization"); got != "Bearer "+token {
					t.Errorf("Authorization: %q", got)
				}

				if got := receiver.Header("X-Tenant"); got != "acme/ci" {
					t.Errorf("X-Tenant: %q", got)
				}

				logged := p.log.String()
				if !strings.Contains(logged, receiver.URL+`"`) || strings.Contains(logged, exportError) || strings.Contains(logged, token) ||
					p.output.String() != "" {
					t.Errorf("log:\n%s\noutput:\n%s", logged, p.output)
				}
			})
		}
	}
}

func withoutPath(variables func(string) []string) func(string) []string {
	return func(url string) []string {
		list := variables(url)
		for i := range list {
			list[i] = strings.TrimSuffix(list[i], otlp.Path)
		}

		return list
	}
}

func TestReceiverWithCertificate(t *testing.T) {
	for protocol, receive := range map[string]func(testing.TB) *otlp.Receiver{
		"grpc": otlp.StartGRPCWithTLS, "http/protobuf": otlp.StartHTTPWithTLS,
	} {
		for name, trusted := range map[string]bool{"of a CA that is named": true, "of an unknown authority": false} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				receiver := receive(t)
				setEnvironment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol)

				if trusted {
					path := filepath.Join(t.TempDir(), "ca.pem")
					if err := os.WriteFile(path, receiver.CA, 0o600); err != nil {
						t.Fatal(err)
					}

					t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", path)
				}

				p := startSpan(t, nil)
				emitSpans(t.Context())
				p.stop()

				// The cause is logged, at the latest at the shutdown.
				hasCause := strings.Contains(p.log.String(), exportError) && strings.Contains(p.log.String(), "x509:")
				if got := len(receiver.Spans()) == 2; got != trusted || hasCause == trusted {
					t.Errorf("exported: %v, log:\n%s", got, p.log)
				}
			})
		}
	}
}

func TestNamesOfTheProgram(t *testing.T) {
	for name, tc := range map[string]struct {
		variables []string
		want      string
	}{
		"its own":                {nil, "hyperfleet-test"},
		"OTEL_SERVICE_NAME":      {[]string{"OTEL_SERVICE_NAME=east", "OTEL_RESOURCE_ATTRIBUTES=service.name=west"}, "east"},
		"a resource's attribute": {[]string{"OTEL_RESOURCE_ATTRIBUTES=service.name=west,deployment.environment.name=lab"}, "west"},
	} {
		t.Run(name, func(t *testing.T) {
			receiver := otlp.StartHTTP(t)
			setEnvironment(t, append(tc.variables, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL)...)

			p := startSpan(t, nil)
			emitSpans(t.Context())
			p.stop()

			if spans := receiver.Spans(); len(spans) != 2 || spans[0].Service != tc.want {
				t.Errorf("spans %+v", spans)
			}
		})
	}
}

func TestSampling(t *testing.T) {
	from := func(flags trace.TraceFlags) context.Context {
		return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, Remote: true,
		}))
	}

	for name, tc := range map[string]struct {
		variables []string
		from      context.Context
		want      bool
	}{
		"all by default":                 {nil, context.Background(), true},
		"as the parent, by itself":       {nil, from(0), false},
		"none":                           {[]string{"OTEL_TRACES_SAMPLER=always_off"}, from(trace.FlagsSampled), false},
		"no part of all":                 {[]string{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0"}, context.Background(), false},
		"a part of all":                  {[]string{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=1.0"}, from(0), true},
		"none, by the parent's decision": {[]string{"OTEL_TRACES_SAMPLER=parentbased_always_off"}, from(trace.FlagsSampled), true},
		"none but the parent's":          {[]string{"OTEL_TRACES_SAMPLER=parentbased_always_off"}, context.Background(), false},
	} {
		t.Run(name, func(t *testing.T) {
			receiver := otlp.StartGRPC(t)
			setEnvironment(t, append(tc.variables, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")...)

			p := startSpan(t, nil)
			last := emitSpans(tc.from)
			p.stop()

			if got := len(receiver.Spans()) == 2; got != tc.want || last.IsSampled() != tc.want || !last.IsValid() {
				t.Errorf("exported: %v; context %+v", got, last)
			}
		})
	}
}

func TestOff(t *testing.T) {
	for name, value := range map[string]string{"nothing": "", "false": "false", "0": " 0 "} {
		t.Run(name, func(t *testing.T) {
			receiver := otlp.StartHTTP(t)
			// Invalid variables are ignored if tracing is off.
			setEnvironment(t, tracing.EnvEnabled+"="+value, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_TRACES_SAMPLER=dice")

			p := startSpan(t, nil)
			parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
			last := emitSpans(trace.ContextWithRemoteSpanContext(t.Context(), parent))
			p.stop()

			if last.TraceID() != parent.TraceID() || last.SpanID() != parent.SpanID() {
				t.Errorf("the trace context is not propagated: %+v", last)
			}

			if receiver.Exports() != 0 || p.log.String() != "" || p.output.String() != "" {
				t.Errorf("%d exports\n%s%s", receiver.Exports(), p.log, p.output)
			}
		})
	}
}

func TestWithoutAnEndpoint(t *testing.T) {
	setEnvironment(t, "OTEL_EXPORTER_OTLP_HEADERS="+headers)

	p := startSpan(t, nil)
	last := emitSpans(t.Context())
	p.stop()

	var got []string

	for lines := bufio.NewScanner(strings.NewReader(p.output.String())); lines.Scan(); {
		var span struct {
			Name        string
			SpanContext struct{ TraceID string }
		}
		if err := json.Unmarshal(lines.Bytes(), &span); err != nil || span.SpanContext.TraceID != last.TraceID().String() {
			t.Errorf("line %q: %v", lines.Text(), err)
		}

		got = append(got, span.Name)
	}

	if strings.Join(got, " ") != "inner outer" || strings.Contains(p.output.String()+p.log.String(), token) {
		t.Errorf("output:\n%s\nlog:\n%s", p.output, p.log)
	}
}

func TestInvalidVariables(t *testing.T) {
	nowhere, empty := filepath.Join(t.TempDir(), "none.pem"), filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		variables []string
		want      string
	}{
		"on":                 {[]string{"HYPERFLEET_TRACING_ENABLED=maybe"}, `HYPERFLEET_TRACING_ENABLED: "maybe": want true or false`},
		"no URL":             {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL such as http://collector:4317"},
		"no URL, for traces": {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=127.0.0.1:4317"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: want a URL"},
		"a bad URL":          {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + token + "\x7f/"}, "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL"},
		"a user":             {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://me:" + token + "@collector"}, "use OTEL_EXPORTER_OTLP_HEADERS"},
		"a query":            {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://collector/?key=" + token}, "the URL has a query"},
		"a protocol":         {[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=thrift"}, `OTEL_EXPORTER_OTLP_PROTOCOL: "thrift": want grpc or http/protobuf`},
		"no pair":            {[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=b," + token}, "OTEL_EXPORTER_OTLP_HEADERS: entry 2: want NAME=VALUE"},
		"bad encoding":       {[]string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=" + token + "%zz"}, "OTEL_EXPORTER_OTLP_TRACES_HEADERS: entry 1"},
		"two lines":          {[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=" + token + "%0Ax"}, "entry 1"},
		"a header's name":    {[]string{"OTEL_EXPORTER_OTLP_HEADERS=" + token + " x=1"}, "entry 1"},
		"a sampler":          {[]string{"OTEL_TRACES_SAMPLER=dice"}, `OTEL_TRACES_SAMPLER: "dice"`},
		"a part":             {[]string{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=2"}, `OTEL_TRACES_SAMPLER_ARG: "2": want a number from 0 to 1`},
		"no number":          {[]string{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=NaN"}, "OTEL_TRACES_SAMPLER_ARG"},
		"no CA":              {[]string{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + nowhere}, "OTEL_EXPORTER_OTLP_CERTIFICATE: open " + nowhere},
		"an empty CA":        {[]string{"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE=" + empty}, "it contains no certificate: use PEM"},
		"half a pair":        {[]string{"OTEL_EXPORTER_OTLP_CLIENT_KEY=" + empty}, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: set it together with OTEL_EXPORTER_OTLP_CLIENT_KEY"},
		"an empty pair": {
			[]string{"OTEL_EXPORTER_OTLP_CLIENT_KEY=" + empty, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + empty},
			"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: tls:",
		},
		"attributes":          {[]string{"OTEL_RESOURCE_ATTRIBUTES=novalue"}, "OTEL_RESOURCE_ATTRIBUTES"},
		"all errors together": {[]string{"OTEL_TRACES_SAMPLER=dice", "OTEL_EXPORTER_OTLP_PROTOCOL=thrift"}, "\nOTEL_TRACES_SAMPLER"},
	} {
		t.Run(name, func(t *testing.T) {
			setEnvironment(t, tc.variables...)

			logged := &capture.Buffer{}

			_, err := tracing.Start(t.Context(), tracing.Options{
				Service: "hyperfleet-test", Log: log.New(logged, log.Options{}), Output: logged,
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error()+logged.String(), token) {
				t.Errorf("error %v, want %q\n%s", err, tc.want, logged)
			}

			if otel.Tracer("test") == nil || emitSpans(t.Context()).IsSampled() {
				t.Error("spans are created after an error")
			}
		})
	}
}

// TestUnavailableReceiver uses a receiver that does not listen, and one that never responds. In both cases, the
// program continues its work and stops in time.
func TestUnavailableReceiver(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	const nobody = "127.0.0.1:1"

	for name, address := range map[string]string{
		// An unreachable gRPC receiver is reported in the same way as an untrusted one: TestReceiverWithCertificate.
		"http/protobuf nobody": nobody,
		"grpc silent":          listener.Addr().String(), "http/protobuf silent": listener.Addr().String(),
	} {
		t.Run(name, func(t *testing.T) {
			protocol, _, _ := strings.Cut(name, " ")
			setEnvironment(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_EXPORTER_OTLP_HEADERS="+headers, "OTEL_BSP_MAX_QUEUE_SIZE=10", "OTEL_BSP_SCHEDULE_DELAY=1")

			p := startSpan(t, nil)

			// Emit more spans than the queue holds. The program must not block.
			for range 1000 {
				emitSpans(t.Context())
			}

			p.stop()

			logged := p.log.String()
			if !strings.Contains(logged, exportError) || strings.Contains(logged, token) {
				t.Errorf("log:\n%s", logged)
			}

			if strings.HasSuffix(name, "nobody") && !strings.Contains(logged, "connection refused") {
				t.Errorf("the log does not have the cause:\n%s", logged)
			}

			if got := strings.Count(logged, "\n"); got > 3 {
				t.Errorf("%d lines:\n%s", got, logged)
			}
		})
	}
}

// TestRejectingReceiver uses a receiver that responds with the content of the request.
func TestRejectingReceiver(t *testing.T) {
	for protocol, receive := range listReceivers() {
		for name, say := range map[string]func(string) string{
			"the header":           func(value string) string { return "not allowed: " + value },
			"the token":            func(value string) string { return "no such token " + strings.TrimPrefix(value, "Bearer ") },
			"at length":            func(value string) string { return "not " + value + strings.Repeat("y", 5000) },
			"one value many times": func(value string) string { return strings.Repeat(value, 100) },
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				receiver := receive(t)
				receiver.Reject("authorization", say)
				setEnvironment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.URL, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
					"OTEL_EXPORTER_OTLP_HEADERS="+headers)

				p := startSpan(t, nil)
				emitSpans(t.Context())
				p.stop()

				logged := p.log.String()
				if receiver.Exports() == 0 || !strings.Contains(logged, log.Redacted) || strings.Contains(logged, token[:6]) || len(logged) > 2000 {
					t.Errorf("%d exports, log:\n%s", receiver.Exports(), logged)
				}
			})
		}
	}
}

func TestExportErrorsAreLoggedSeldom(t *testing.T) {
	setEnvironment(t)

	now := clocktesting.NewFakePassiveClock(time.Now())
	p := startSpan(t, now)
	lines := func() int { return strings.Count(p.log.String(), exportError) }

	for range 50 {
		otel.Handle(errors.New("no room on the disk"))
	}

	if got := lines(); got != 1 {
		t.Fatalf("%d lines:\n%s", got, p.log)
	}

	now.SetTime(now.Now().Add(time.Minute))
	otel.Handle(errors.New("still none"))

	if logged := p.log.String(); lines() != 2 || !strings.Contains(logged, `"error":"still none","suppressed":49`) {
		t.Fatalf("log:\n%s", logged)
	}

	otel.Handle(errors.New("and again"))
	p.stop()

	if logged := p.log.String(); lines() != 3 || !strings.Contains(logged, `"suppressed":1`) {
		t.Errorf("log:\n%s", logged)
	}
}
