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

// Path is the path of OTLP over HTTP for spans, below the endpoint.
const Path = "/v1/traces"

// maxBody is the maximum size of a request body in bytes.
const maxBody = 16 << 20

// Span is a received span, with the name of its service.
type Span struct {
	Name    string
	Service string
	Kind    trace.Span_SpanKind
	// TraceID, ID and Parent are in hexadecimal. Parent is empty for the root span of a trace.
	TraceID, ID, Parent string
	Attributes          map[string]string
	// Failed is true if the status of the span is an error.
	Failed bool
	// Text is the JSON of the span's resource and of the span.
	Text string
}

// Receiver receives and stores spans.
type Receiver struct {
	// URL is the endpoint, the value for OTEL_EXPORTER_OTLP_ENDPOINT.
	URL string
	// CA is the certificate in PEM that clients must trust. It is nil without TLS.
	CA []byte

	t testing.TB

	mu    sync.Mutex
	spans []Span
	// headers are the headers of the last export by their names in lower case.
	headers      map[string]string
	exports      int
	newRejection func(header string) string
	rejectHeader string
}

// Spans returns the spans that were received so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()

	return append([]Span(nil), r.spans...)
}

// Header returns a header of the last export.
func (r *Receiver) Header(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.headers[strings.ToLower(name)]
}

// Exports returns the number of exports that were received, including those that were rejected.
func (r *Receiver) Exports() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.exports
}

// Reject makes the receiver reject all later exports with a permission error. newMessage returns the
// error's message for the value of the header with that name.
func (r *Receiver) Reject(header string, newMessage func(value string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.rejectHeader, r.newRejection = strings.ToLower(header), newMessage
}

// record stores the spans of a request. If exports are rejected, it stores nothing and returns the error
// message.
func (r *Receiver) record(
	request *collector.ExportTraceServiceRequest, headers map[string]string,
) (message string, isRejected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.headers = headers
	r.exports++

	if r.newRejection != nil {
		return r.newRejection(headers[r.rejectHeader]), true
	}

	for _, resource := range request.GetResourceSpans() {
		resourceAttributes := convertAttributes(resource.GetResource().GetAttributes())

		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				if len(span.GetTraceId()) != 16 || len(span.GetSpanId()) != 8 || span.GetName() == "" ||
					span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() {
					r.t.Errorf("the protocol does not allow span %v", span)
				}

				r.spans = append(r.spans, Span{
					Name: span.GetName(), Service: resourceAttributes["service.name"], Kind: span.GetKind(),
					TraceID: hex.EncodeToString(span.GetTraceId()), ID: hex.EncodeToString(span.GetSpanId()),
					Parent: hex.EncodeToString(span.GetParentSpanId()), Attributes: convertAttributes(span.GetAttributes()),
					Failed: span.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR,
					Text:   protojson.Format(resource.GetResource()) + protojson.Format(span),
				})
			}
		}
	}

	return "", false
}

func convertAttributes(list []*common.KeyValue) map[string]string {
	out := map[string]string{}

	for _, attribute := range list {
		switch value := attribute.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[attribute.GetKey()] = value.StringValue
		case *common.AnyValue_IntValue:
			out[attribute.GetKey()] = strconv.FormatInt(value.IntValue, 10)
		default:
			out[attribute.GetKey()] = attribute.GetValue().String()
		}
	}

	return out
}

// StartGRPC starts a receiver of OTLP over gRPC.
func StartGRPC(t testing.TB) *Receiver {
	t.Helper()

	return serveGRPC(t, &Receiver{t: t})
}

// StartGRPCWithTLS starts a receiver of OTLP over gRPC with TLS.
func StartGRPCWithTLS(t testing.TB) *Receiver {
	t.Helper()

	// This server only provides its certificate.
	certServer := httptest.NewTLSServer(http.NotFoundHandler())
	defer certServer.Close()

	return serveGRPC(t, &Receiver{t: t, CA: encodePEM(certServer)}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: certServer.TLS.Certificates, MinVersion: tls.VersionTLS12,
	})))
}

func encodePEM(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func serveGRPC(t testing.TB, r *Receiver, options ...grpc.ServerOption) *Receiver {
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
		t.Errorf("the client called %s, which the receiver does not support", method)

		return status.Error(codes.Unimplemented, method)
	}))...)
	collector.RegisterTraceServiceServer(server, &traceService{receiver: r})

	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	t.Cleanup(func() {
		server.Stop()

		// If the test sends nothing, the server may be stopped before it has started.
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve OTLP: %v", err)
		}
	})

	return r
}

type traceService struct {
	collector.UnimplementedTraceServiceServer

	receiver *Receiver
}

// Export handles an export.
func (s *traceService) Export(
	ctx context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	headers := map[string]string{}

	incoming, _ := metadata.FromIncomingContext(ctx)
	for name, values := range incoming {
		headers[name] = strings.Join(values, ",")
	}

	if message, isRejected := s.receiver.record(request, headers); isRejected {
		return nil, status.Error(codes.PermissionDenied, message)
	}

	return &collector.ExportTraceServiceResponse{}, nil
}

// StartHTTP starts a receiver of OTLP over HTTP with protobuf.
func StartHTTP(t testing.TB) *Receiver {
	t.Helper()

	return startHTTP(t, (*httptest.Server).Start)
}

// StartHTTPWithTLS starts a receiver of OTLP over HTTPS with protobuf.
func StartHTTPWithTLS(t testing.TB) *Receiver {
	t.Helper()

	return startHTTP(t, (*httptest.Server).StartTLS)
}

func startHTTP(t testing.TB, start func(*httptest.Server)) *Receiver {
	t.Helper()

	r := &Receiver{t: t}
	server := httptest.NewUnstartedServer(http.HandlerFunc(r.serveHTTP))
	// Drop the log of failed TLS handshakes with clients that do not trust the certificate.
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(server)

	if r.URL = server.URL; server.TLS != nil {
		r.CA = encodePEM(server)
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
	if err := decodeRequest(request, &export); err != nil {
		r.t.Errorf("read export: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)

		return
	}

	headers := map[string]string{}
	for name, values := range request.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}

	if message, isRejected := r.record(&export, headers); isRejected {
		http.Error(w, message, http.StatusForbidden)

		return
	}

	w.Header().Set("Content-Type", "application/x-protobuf")

	response, err := proto.Marshal(&collector.ExportTraceServiceResponse{})
	if err == nil {
		_, err = w.Write(response)
	}

	if err != nil {
		r.t.Errorf("write response: %v", err)
	}
}

func decodeRequest(request *http.Request, export *collector.ExportTraceServiceRequest) error {
	if got := request.Header.Get("Content-Type"); got != "application/x-protobuf" {
		return fmt.Errorf("content type %q is not supported", got)
	}

	body := io.Reader(request.Body)

	switch got := request.Header.Get("Content-Encoding"); got {
	case "":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return fmt.Errorf("decompress: %w", err)
		}

		body = unzipped
	default:
		return fmt.Errorf("content encoding %q is not supported", got)
	}

	data, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}

	if err := proto.Unmarshal(data, export); err != nil {
		return fmt.Errorf("parse: %w", err)
	}

	return nil
}
