// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// API is a fleet API as a handler.
type API struct {
	http.Handler

	Store *store.Store

	// endFeeds ends the answers that stay open.
	endFeeds context.CancelFunc
}

// Open makes an API of the kinds on the database at url, which is migrated.
func Open(ctx context.Context, url string, kinds ...platform.Entity) (*API, error) {
	opened, err := store.Open(ctx, store.Options{URL: url})
	if err != nil {
		return nil, fmt.Errorf("open test API: %w", err)
	}

	stopping, stop := context.WithCancel(context.WithoutCancel(ctx))

	handler, err := server.New(server.Options{Store: opened, Stopping: stopping, Entities: kinds})
	if err != nil {
		stop()
		opened.Close()

		return nil, fmt.Errorf("open test API: %w", err)
	}

	return &API{Handler: handler, Store: opened, endFeeds: stop}, nil
}

// Close ends the change feeds, and lets go of the database.
func (a *API) Close() {
	a.endFeeds()
	a.Store.Close()
}

// Serve is an API of the test's own, with a database of its own, and its URL without path.
// Both end with the test.
func Serve(t testing.TB, database *postgres.Server, kinds ...platform.Entity) (*API, string) {
	t.Helper()

	api, err := Open(t.Context(), Database(t, database), kinds...)
	if err != nil {
		t.Fatal(err)
	}

	listening := httptest.NewServer(api)
	t.Cleanup(func() {
		api.endFeeds()
		listening.Close()
		api.Close()
	})

	return api, listening.URL
}

// Database makes a database for one test that has the API's tables.
func Database(t testing.TB, database *postgres.Server) string {
	t.Helper()

	return database.Like(t, func(url string) error {
		opened, err := store.Open(context.Background(), store.Options{URL: url})
		if err == nil {
			opened.Close()
		}

		return err
	})
}

// With starts PostgreSQL and an API of the kinds for all tests of a binary, hands the API
// to use, runs, ends both, and gives what run gave. For TestMain:
//
//	os.Exit(fleetapi.With(func(a *fleetapi.API) { api = a }, m.Run, kinds()...))
func With(use func(*API), run func() int, kinds ...platform.Entity) int {
	return postgres.With(func(database *postgres.Server) int {
		api, err := Open(context.Background(), database.URL("postgres"), kinds...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}
		defer api.Close()

		use(api)

		return run()
	})
}

// Call makes a call of the API at url that has to succeed, and reads the answer into what is not
// nil. The body is JSON text, or a value to encode; nil for none.
func Call(t testing.TB, method, url, path string, body, into any) {
	t.Helper()

	text, err := json.Marshal(body)
	if given, ok := body.(string); ok {
		text = []byte(given)
	}

	if err != nil {
		t.Fatal(err)
	}

	request, err := http.NewRequestWithContext(t.Context(), method, url+server.BasePath+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}

	request.Header.Set("Content-Type", "application/json")

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()

	said, err := io.ReadAll(response.Body)
	if err == nil && into != nil {
		err = json.Unmarshal(said, into)
	}

	if err != nil || response.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %d %s, %v", method, path, response.StatusCode, said, err)
	}
}
