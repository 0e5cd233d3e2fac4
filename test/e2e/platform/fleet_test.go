// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	callTimeout = 15 * time.Second
	// parallelClients is the number of clients that send requests to the API at the same time.
	parallelClients = 8
)

// resource is the body of a request that creates a resource.
type resource struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   map[string]any    `json:"spec"`
}

// sendWithRetries sends a request, and retries it while the API is unavailable, as a user's script does.
func (w *fixture) sendWithRetries(method, path string, body any) (int, *openapi.Resource) {
	w.t.Helper()

	data, err := json.Marshal(body)
	w.must(err)

	deadline := time.Now().Add(waitTimeout)

	for {
		status, resource, err := w.sendOnce(method, path, data)
		if err == nil && status < http.StatusInternalServerError {
			return status, resource
		}

		if time.Now().After(deadline) {
			w.t.Errorf("%s %s: status %d, %v", method, path, status, err)

			return status, nil
		}

		time.Sleep(pollInterval)
	}
}

func (w *fixture) sendOnce(method, path string, data []byte) (int, *openapi.Resource, error) {
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.apiURL+client.BasePath+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}

	request.Header.Set("Content-Type", "application/json")

	response, err := (&http.Client{Timeout: callTimeout, Transport: cmp.Or[http.RoundTripper](w.transport, sharedTransport)}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()

	if response.StatusCode >= http.StatusBadRequest {
		var problem openapi.Problem

		err := json.NewDecoder(response.Body).Decode(&problem)
		w.t.Logf("%s %s: %d %s: %s", method, path, response.StatusCode, problem.Code, problem.Detail)

		return response.StatusCode, nil, err
	}

	var decoded openapi.Resource

	if response.StatusCode != http.StatusNoContent {
		err = json.NewDecoder(response.Body).Decode(&decoded)
	}

	return response.StatusCode, &decoded, err
}

// sharedTransport reuses connections.
var sharedTransport = &http.Transport{MaxIdleConnsPerHost: parallelClients}

// createResource creates a resource and returns its ID. If an earlier attempt had created the resource and
// its response was lost, the resource is found by its name.
func (w *fixture) createResource(path string, r resource) string {
	status, created := w.sendWithRetries(http.MethodPost, path, r)

	switch {
	case status == http.StatusCreated && created != nil:
		return created.Id
	case status == http.StatusConflict:
		for _, other := range w.listResources(path[1:], "name = '"+r.Name+"'") {
			return other.Id
		}
	}

	w.t.Errorf("create %s %s: status %d", path, r.Name, status)

	return ""
}

// listResources reads all pages of a collection.
func (w *fixture) listResources(plural, search string) []openapi.Resource {
	w.t.Helper()

	var out []openapi.Resource

	for page := 1; ; page++ {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		got, err := w.api.List(ctx, plural, client.ListOptions{Page: page, Search: search})

		cancel()
		w.must(err)

		out = append(out, got.Items...)
		if len(got.Items) < client.MaxPageSize {
			return out
		}
	}
}

// isGone returns true if the API responds that the resource does not exist.
func (w *fixture) isGone(id string) bool {
	_, err := w.api.Get(w.t.Context(), id)

	return errors.Is(err, client.ErrNotFound)
}

// isReconciled returns true if the resource is reconciled at its current generation.
func isReconciled(r *openapi.Resource) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c openapi.ResourceCondition) bool {
		return c.Type == "Reconciled" && c.Status == "True" && c.ObservedGeneration == r.Generation
	})
}

// waitUntilReconciled waits until all resources in the API are reconciled.
func (w *fixture) waitUntilReconciled(what string) {
	w.t.Helper()
	w.eventually(what, func() string {
		pending := []string{}
		all := w.listResources("resources", "")

		for i := range all {
			if !isReconciled(&all[i]) {
				pending = append(pending, all[i].Name)
			}
		}

		if len(pending) == 0 {
			return ""
		}

		return fmt.Sprintf("%d of %d resources are not reconciled, for example %s", len(pending), len(all), pending[0])
	})
}

// forEachParallel calls do for each item, with parallelClients goroutines.
func forEachParallel[T any](items []T, do func(T)) {
	var (
		group sync.WaitGroup
		next  = make(chan T)
	)

	for range parallelClients {
		group.Go(func() {
			for item := range next {
				do(item)
			}
		})
	}

	for _, item := range items {
		next <- item
	}

	close(next)
	group.Wait()
}
