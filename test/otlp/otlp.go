// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Path is where OTLP over HTTP takes spans, below the endpoint.
const Path = "/v1/traces"

// maxBody bounds what is read of a request.
const maxBody = 16 << 20

// Span is one that came, with the resource that it came from.
type Span struct {
	Name    string
	Service string
	Kind    trace.Span_SpanKind
	// TraceID, ID and Parent in hex; Parent is empty for the root of a trace.
	TraceID, ID, Parent string
	Attributes          map[string]string
	// Failed says that the status is an error.
	Failed bool
	// Text is all of it, and of its resource, as JSON.
	Text string
}

// Receiver takes spans.
type Receiver struct {
	// URL is the endpoint: what OTEL_EXPORTER_OTLP_ENDPOINT is to say.
	URL string
	// CA is the certificate that a client has to trust, in PEM; nil without TLS.
	CA []byte

	t testing.TB

	mu    sync.Mutex
	spans []Span
	// headers are those of the last export, in lower case.
	headers map[string]string
	exports int
	refuse  func(header string) string
	header  string
}

// Spans are those that have come so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()

	return append([]Span(nil), r.spans...)
}

// Header gives a header of the last export.
func (r *Receiver) Header(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.headers[strings.ToLower(name)]
}

// Exports is how many came, refused ones included.
func (r *Receiver) Exports() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.exports
}

// Refuse has all exports refused from now on, as not allowed, with the words that say
// makes of the header of that name.
func (r *Receiver) Refuse(header string, say func(value string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.header, r.refuse = strings.ToLower(header), say
}

// take keeps the spans of a request, and gives the words to refuse it with.
func (r *Receiver) take(request *collector.ExportTraceServiceRequest, headers map[string]string) (refused string, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.headers = headers
	r.exports++

	if r.refuse != nil {
		return r.refuse(headers[r.header]), true
	}

	for _, resource := range request.GetResourceSpans() {
		about := attributes(resource.GetResource().GetAttributes())

		for _, scope := range resource.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				if len(one.GetTraceId()) != 16 || len(one.GetSpanId()) != 8 || one.GetName() == "" ||
					one.GetEndTimeUnixNano() < one.GetStartTimeUnixNano() {
					r.t.Errorf("span %v is not one that the protocol allows", one)
				}

				r.spans = append(r.spans, Span{
					Name: one.GetName(), Service: about["service.name"], Kind: one.GetKind(),
					TraceID: hex.EncodeToString(one.GetTraceId()), ID: hex.EncodeToString(one.GetSpanId()),
					Parent: hex.EncodeToString(one.GetParentSpanId()), Attributes: attributes(one.GetAttributes()),
					Failed: one.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR,
					Text:   protojson.Format(resource.GetResource()) + protojson.Format(one),
				})
			}
		}
	}

	return "", false
}

func attributes(list []*common.KeyValue) map[string]string {
	out := map[string]string{}

	for _, one := range list {
		switch value := one.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[one.GetKey()] = value.StringValue
		case *common.AnyValue_IntValue:
			out[one.GetKey()] = strconv.FormatInt(value.IntValue, 10)
		default:
			out[one.GetKey()] = one.GetValue().String()
		}
	}

	return out
}

// StartGRPC starts a receiver that speaks gRPC.
func StartGRPC(t testing.TB) *Receiver {
	t.Helper()

	return overTCP(t, &Receiver{t: t})
}

// StartGRPCWithTLS starts one over TLS.
func StartGRPCWithTLS(t testing.TB) *Receiver {
	t.Helper()

	// For its certificate alone.
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()

	return overTCP(t, &Receiver{t: t, CA: pemOf(other)}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: other.TLS.Certificates, MinVersion: tls.VersionTLS12,
	})))
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func overTCP(t testing.TB, r *Receiver, options ...grpc.ServerOption) *Receiver {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	r.URL = "http://" + listener.Addr().String()
	if r.CA != nil {
		r.URL = "https://" + listener.Addr().String()
	}

	server := grpc.NewServer(append(options, grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		t.Errorf("call of %s, which a receiver of spans does not have", method)

		return status.Error(codes.Unimplemented, method)
	}))...)
	collector.RegisterTraceServiceServer(server, &overGRPC{receiver: r})

	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	t.Cleanup(func() {
		server.Stop()

		// A test that sends nothing may be over before the server has begun.
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve OTLP: %v", err)
		}
	})

	return r
}

type overGRPC struct {
	collector.UnimplementedTraceServiceServer

	receiver *Receiver
}

// Export takes an export.
func (s *overGRPC) Export(
	ctx context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	headers := map[string]string{}

	incoming, _ := metadata.FromIncomingContext(ctx)
	for name, values := range incoming {
		headers[name] = strings.Join(values, ",")
	}

	if words, refused := s.receiver.take(request, headers); refused {
		return nil, status.Error(codes.PermissionDenied, words)
	}

	return &collector.ExportTraceServiceResponse{}, nil
}

// StartHTTP starts a receiver that speaks HTTP with protobuf.
func StartHTTP(t testing.TB) *Receiver {
	t.Helper()

	return overHTTP(t, (*httptest.Server).Start)
}

// StartHTTPWithTLS starts one over TLS.
func StartHTTPWithTLS(t testing.TB) *Receiver {
	t.Helper()

	return overHTTP(t, (*httptest.Server).StartTLS)
}

func overHTTP(t testing.TB, start func(*httptest.Server)) *Receiver {
	t.Helper()

	r := &Receiver{t: t}
	server := httptest.NewUnstartedServer(http.HandlerFunc(r.serveHTTP))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of clients that do not trust it
	start(server)

	if r.URL = server.URL; server.TLS != nil {
		r.CA = pemOf(server)
	}

	t.Cleanup(server.Close)

	return r
}

func (r *Receiver) serveHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPost || request.URL.Path != Path {
		r.t.Errorf("%s %s: want POST %s", request.Method, request.URL.Path, Path)
		http.Error(w, "no such route", http.StatusNotImplemented)

		return
	}

	var export collector.ExportTraceServiceRequest
	if err := readHTTP(request, &export); err != nil {
		r.t.Errorf("read export: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)

		return
	}

	headers := map[string]string{}
	for name, values := range request.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}

	if words, refused := r.take(&export, headers); refused {
		http.Error(w, words, http.StatusForbidden)

		return
	}

	w.Header().Set("Content-Type", "application/x-protobuf")

	answer, err := proto.Marshal(&collector.ExportTraceServiceResponse{})
	if err == nil {
		_, err = w.Write(answer)
	}

	if err != nil {
		r.t.Errorf("answer: %v", err)
	}
}

func readHTTP(request *http.Request, into *collector.ExportTraceServiceRequest) error {
	if got := request.Header.Get("Content-Type"); got != "application/x-protobuf" {
		return fmt.Errorf("content type %q", got)
	}

	body := io.Reader(request.Body)

	switch got := request.Header.Get("Content-Encoding"); got {
	case "":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return fmt.Errorf("unzip: %w", err)
		}

		body = unzipped
	default:
		return fmt.Errorf("content encoding %q", got)
	}

	data, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}

	if err := proto.Unmarshal(data, into); err != nil {
		return fmt.Errorf("parse: %w", err)
	}

	return nil
}
