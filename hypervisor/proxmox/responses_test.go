// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
)

// gzipText returns the text as a complete gzip stream. Several streams in a row are a valid stream too (RFC
// 1952, 2.2).
func gzipText(text string) []byte {
	var out bytes.Buffer

	writer := gzip.NewWriter(&out)
	_, _ = io.WriteString(writer, text)
	_ = writer.Close()

	return out.Bytes()
}

// The client limits the size of a response and does not send its credential to another server.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()

	const pieces = 1 << 16 // MiB: more than the buffers of the connection hold

	var elsewhere, written atomic.Int64

	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)

	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a small response that becomes large": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(gzipText(`{"data":"`))

			for piece := gzipText(strings.Repeat("x", 1<<20)); ; written.Add(1) {
				if _, err := w.Write(piece); err != nil || written.Load() > pieces {
					return
				}
			}
		}, "more than 67108864 bytes"},
		"a long header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		}, "headers exceeded"},
		"a way elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "307"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewTLSServer(tt.answer)
			t.Cleanup(server.Close)

			trusted, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}

			p, err := proxmox.New(hypervisor.Config{
				Name: "lab", Endpoint: server.URL, TLS: trusted,
				Credentials: hypervisor.Credentials{TokenID: "ci@pve!x", TokenSecret: "s3cret"},
			}, hypervisor.Options{OperatorUID: "op"})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()

			if _, err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Check() = %.300v, want an error that contains %q", err, tt.want)
			}
		})
	}

	t.Cleanup(func() {
		if n := elsewhere.Load(); n > 0 || written.Load() > pieces {
			t.Errorf("%d calls went elsewhere, %d MiB were read", n, written.Load())
		}
	})
}
