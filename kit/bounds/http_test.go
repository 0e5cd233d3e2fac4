// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

func getBody(t *testing.T, handler http.HandlerFunc) ([]byte, error) {
	t.Helper()

	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	resp, err := (&http.Client{Transport: bounds.SharedTransport()}).Get(server.URL)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()

	return io.ReadAll(resp.Body)
}

func TestDecompressedBytesAreCounted(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		size    int
		gzip    bool
		refused bool
	}{
		"the maximum size": {bounds.MaxBodyBytes, false, false},
		"one more":         {bounds.MaxBodyBytes + 1, false, true},
		"small, gzip":      {bounds.MaxBodyBytes, true, false},
		"large, gzip":      {300 << 20, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := getBody(t, func(w http.ResponseWriter, _ *http.Request) {
				var out io.WriteCloser = nopCloser{w}

				if tt.gzip {
					w.Header().Set("Content-Encoding", "gzip")

					out = gzip.NewWriter(w)
				}

				// Write until the client closes the connection.
				piece := bytes.Repeat([]byte("x"), 1<<16)
				for left := tt.size; left > 0; left -= len(piece) {
					if _, err := out.Write(piece[:min(left, len(piece))]); err != nil {
						return
					}
				}

				_ = out.Close()
			})

			_, large := errors.AsType[*bounds.ResponseTooLargeError](err)
			if large != tt.refused || !large && err != nil {
				t.Errorf("error %v, want one of the limit: %v", err, tt.refused)
			}

			if len(got) > bounds.MaxBodyBytes || !tt.refused && len(got) != tt.size {
				t.Errorf("%d bytes were read", len(got))
			}
		})
	}
}

func TestCredentialsNeedEncryption(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]bool{
		"https://api.github.com": true, "http://127.0.0.1:8080/x": true, "http://localhost": true, "http://[::1]:1": true,
		"http://[::ffff:127.0.0.1]": true, "http://127.9.9.9": true,
		"http://github.com": false, "http://10.0.0.1": false, "http://localhost.example.com": false, "http://127.0.0.1.example.com": false,
		"http://127.1": false, "https://": false, "ftp://127.0.0.1": false, "127.0.0.1": false,
	} {
		parsed, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}

		if got := bounds.IsSecureURL(parsed); got != want {
			t.Errorf("Safe(%s) = %v, want %v", text, got, want)
		}
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()

	_, err := getBody(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Long", strings.Repeat("x", 1<<20)) })
	if err == nil || !strings.Contains(err.Error(), "headers exceeded") {
		t.Errorf("error %v, want the headers refused", err)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
