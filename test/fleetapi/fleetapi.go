// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// API is a fleet API as an HTTP handler.
type API struct {
	http.Handler

	Store *store.Store

	// closeFeeds ends the responses of change feeds, which stay open.
	closeFeeds context.CancelFunc
}

// Open creates an API with the entity types on the database at url. It migrates the database.
func Open(ctx context.Context, url string, kinds ...platform.Entity) (*API, error) {
	apiStore, err := store.Open(ctx, store.Options{URL: url})
	if err != nil {
		return nil, fmt.Errorf("open test API: %w", err)
	}

	stopping, stop := context.WithCancel(context.WithoutCancel(ctx))

	handler, err := server.New(server.Options{Store: apiStore, Stopping: stopping, Entities: kinds})
	if err != nil {
		stop()
		apiStore.Close()

		return nil, fmt.Errorf("open test API: %w", err)
	}

	return &API{Handler: handler, Store: apiStore, closeFeeds: stop}, nil
}

// Close ends the change feeds, and closes the connections to the database.
func (a *API) Close() {
	a.closeFeeds()
	a.Store.Close()
}

// Serve starts an API with a new database for one test, until the test ends. It returns the API and its URL
// without a path.
func Serve(t testing.TB, database *postgres.Server, kinds ...platform.Entity) (*API, string) {
	t.Helper()

	api, err := Open(t.Context(), NewDatabase(t, database), kinds...)
	if err != nil {
		t.Fatal(err)
	}

	testServer := httptest.NewServer(api)
	t.Cleanup(func() {
		api.closeFeeds()
		testServer.Close()
		api.Close()
	})

	return api, testServer.URL
}

// NewDatabase creates a database with the API's tables for one test, and returns its URL.
func NewDatabase(t testing.TB, database *postgres.Server) string {
	t.Helper()

	return database.FilledDatabase(t, func(url string) error {
		apiStore, err := store.Open(context.Background(), store.Options{URL: url})
		if err == nil {
			apiStore.Close()
		}

		return err
	})
}

// RunWith starts PostgreSQL and an API with the entity types and a new database for all tests of a binary. It calls use
// with the API, calls run, stops both servers, and returns the exit code of run. Use it in TestMain:
//
//	os.Exit(fleetapi.RunWith(func(a *fleetapi.API) { api = a }, m.Run, kinds()...))
func RunWith(use func(*API), run func() int, kinds ...platform.Entity) int {
	return postgres.RunWith(func(server *postgres.Server) int {
		// A second run of the tests must not find the resources of the first.
		url, drop, err := server.CreateDatabase()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}

		code, err := runWithAPI(url, use, run, kinds)
		if err = errors.Join(err, drop()); err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}

		return code
	})
}

func runWithAPI(url string, use func(*API), run func() int, kinds []platform.Entity) (code int, err error) {
	api, err := Open(context.Background(), url, kinds...)
	if err != nil {
		return 1, err
	}
	defer api.Close()

	use(api)

	return run(), nil
}

// Call calls the API at url, and fails the test if the call does not succeed. It decodes the response into
// result, unless result is nil. The body is JSON text, a value to encode as JSON, or nil.
func Call(t testing.TB, method, url, path string, body, result any) {
	t.Helper()

	text, err := json.Marshal(body)
	if rawText, ok := body.(string); ok {
		text = []byte(rawText)
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

	responseBody, err := io.ReadAll(response.Body)
	if err == nil && result != nil {
		err = json.Unmarshal(responseBody, result)
	}

	if err != nil || response.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %d %s, %v", method, path, response.StatusCode, responseBody, err)
	}
}
