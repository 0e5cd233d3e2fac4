// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package objectstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/objectstore"
	"github.com/hyperfleet/hyperfleet/test/s3"
)

func openStore(t *testing.T, place objectstore.Location, keys objectstore.Credentials) *objectstore.Store {
	t.Helper()

	store, err := objectstore.New(place, keys, bounds.SharedTransport())
	if err != nil {
		t.Fatal(err)
	}

	return store
}

// A written text can be read, and a server that verifies signatures rejects wrong credentials.
func TestWriteAndRead(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.CreateBucket(t, "logs")

	place := objectstore.Location{Endpoint: server.URL, Region: s3.Region, Bucket: "logs"}
	keys := objectstore.Credentials{ID: s3.KeyID, Secret: s3.Secret}
	store, text := openStore(t, place, keys), strings.Repeat("make: all is well €\n", 3000)

	for range 2 {
		if err := store.Put(t.Context(), "a/ci/linux-x7k2p.log", text); err != nil {
			t.Fatal(err)
		}
	}

	if diff := cmp.Diff(map[string]string{"a/ci/linux-x7k2p.log": text}, server.ReadObjects(t, "logs")); diff != "" {
		t.Error(diff)
	}

	if got, err := store.Get(t.Context(), "a/ci/linux-x7k2p.log", 1<<20); err != nil || got != text {
		t.Errorf("Get = %d bytes, %v", len(got), err)
	}

	if got, err := store.Get(t.Context(), "a/ci/linux-x7k2p.log", 1000); err == nil || got != "" {
		t.Errorf("Get of too much = %d bytes, %v", len(got), err)
	}

	for range 2 {
		if err := store.Delete(t.Context(), "a/ci/linux-x7k2p.log"); err != nil {
			t.Error(err)
		}
	}

	if left := server.ReadObjects(t, "logs"); len(left) > 0 {
		t.Errorf("after the deletion there is %v", left)
	}

	for name, tc := range map[string]struct {
		place objectstore.Location
		keys  objectstore.Credentials
		code  string
	}{
		"another secret": {place, objectstore.Credentials{ID: s3.KeyID, Secret: "another"}, "SignatureDoesNotMatch"},
		"another key":    {place, objectstore.Credentials{ID: "nobody", Secret: s3.Secret}, "XAdminUserNotFound"},
		"another region": {objectstore.Location{Endpoint: server.URL, Region: "us-east-1", Bucket: "logs"}, keys, "AuthorizationHeaderMalformed"},
		"no bucket":      {objectstore.Location{Endpoint: server.URL, Region: s3.Region, Bucket: "none"}, keys, "NoSuchBucket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := openStore(t, tc.place, tc.keys).Put(t.Context(), "x", "text")

			var known *objectstore.Error
			if !errors.As(err, &known) || known.Code != tc.code || !strings.Contains(err.Error(), tc.code) {
				t.Errorf("Put = %v, want %s", err, tc.code)
			}
		})
	}
}

func TestMissingObject(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.CreateBucket(t, "logs")

	store := openStore(t, objectstore.Location{Endpoint: server.URL, Region: s3.Region, Bucket: "logs"}, objectstore.Credentials{ID: s3.KeyID, Secret: s3.Secret})

	_, err := store.Get(t.Context(), "gone.log", 100)
	if err == nil || !strings.Contains(err.Error(), "read s3://logs/gone.log at "+server.URL+": NoSuchKey: the object does not exist") {
		t.Errorf("Get = %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()

	for endpoint, good := range map[string]bool{
		"https://s3.example.com": true, "https://s3.example.com:9000/": true, "http://127.0.0.1:9000": true,
		"http://s3.example.com": false, "s3.example.com": false, "https://s3.example.com/bucket": false,
		"https://user:word@s3.example.com": false, "": false, "https://s3.example.com?x=1": false, "ftp://s3.example.com": false,
	} {
		if err := objectstore.ValidateEndpoint(endpoint); (err == nil) != good {
			t.Errorf("Check(%q) = %v, want good = %v", endpoint, err, good)
		}
	}
}

// If a store repeats the request or sends a long message, errors quote at most a limited part without
// secrets. Each call is made once.
func TestErrorsAreShortAndHaveNoKeys(t *testing.T) {
	t.Parallel()

	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++

		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "<Error><Code>Strange</Code><Message>you sent very-secret %s</Message></Error>", strings.Repeat("x", 5000))
	}))
	t.Cleanup(server.Close)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	keys := objectstore.Credentials{ID: "id", Secret: "very-secret"}

	err := openStore(t, objectstore.Location{Endpoint: server.URL, Region: "r", Bucket: "logs"}, keys).Put(ctx, "x", "text")
	if err == nil || strings.Contains(err.Error(), "very-secret") || len(err.Error()) > 500 {
		t.Errorf("Put = %v", err)
	}

	if calls != 1 {
		t.Errorf("%d calls", calls)
	}

	if text := fmt.Sprintf("%v %+v %#v", keys, keys, keys); strings.Contains(text, "very-secret") {
		t.Error(text)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()

	for name, good := range map[string]bool{"ci-logs": true, "": false, "a": false, "CI_logs!": false, "192.168.0.1": false} {
		if err := objectstore.ValidateBucket(name); (err == nil) != good {
			t.Errorf("CheckBucket(%q) = %v, want good = %v", name, err, good)
		}
	}

	for prefix, good := range map[string]bool{"": true, "hyperfleet/": true, "a\xff": false} {
		if err := objectstore.ValidatePrefix(prefix, 11); (err == nil) != good {
			t.Errorf("CheckPrefix(%q) = %v, want good = %v", prefix, err, good)
		}
	}

	if err := objectstore.ValidatePrefix("hyperfleet/", 10); err == nil {
		t.Error("a prefix of 11 bytes is accepted, the limit is 10")
	}
}
