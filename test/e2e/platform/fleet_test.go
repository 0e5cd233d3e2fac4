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
	// clientsAtOnce write to the API.
	clientsAtOnce = 8
)

// resource is what a user says of one.
type resource struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   map[string]any    `json:"spec"`
}

// send makes a request, again and again while the API is away, as a user's script does.
func (w *world) send(method, path string, body any) (int, *openapi.Resource) {
	w.t.Helper()

	data, err := json.Marshal(body)
	w.must(err)

	deadline := time.Now().Add(patience)

	for {
		status, answer, err := w.try(method, path, data)
		if err == nil && status < http.StatusInternalServerError {
			return status, answer
		}

		if time.Now().After(deadline) {
			w.t.Errorf("%s %s: status %d, %v", method, path, status, err)

			return status, nil
		}

		time.Sleep(lookAt)
	}
}

func (w *world) try(method, path string, data []byte) (int, *openapi.Resource, error) {
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.base+client.BasePath+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}

	request.Header.Set("Content-Type", "application/json")

	response, err := (&http.Client{Timeout: callTimeout, Transport: cmp.Or[http.RoundTripper](w.caller, keepAlive)}).Do(request)
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

	var answer openapi.Resource

	if response.StatusCode != http.StatusNoContent {
		err = json.NewDecoder(response.Body).Decode(&answer)
	}

	return response.StatusCode, &answer, err
}

// keepAlive shares connections.
var keepAlive = &http.Transport{MaxIdleConnsPerHost: clientsAtOnce}

// create makes a resource. An answer that got lost is found by the name being taken.
func (w *world) create(path string, r resource) string {
	status, made := w.send(http.MethodPost, path, r)

	switch {
	case status == http.StatusCreated && made != nil:
		return made.Id
	case status == http.StatusConflict:
		for _, other := range w.list(path[1:], "name = '"+r.Name+"'") {
			return other.Id
		}
	}

	w.t.Errorf("create %s %s: status %d", path, r.Name, status)

	return ""
}

// list reads all pages of a collection.
func (w *world) list(plural, search string) []openapi.Resource {
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

// gone says whether the API has the resource no more.
func (w *world) gone(id string) bool {
	_, err := w.api.Get(w.t.Context(), id)

	return errors.Is(err, client.ErrNotFound)
}

// reconciled says whether the resource is, at its generation.
func reconciled(r *openapi.Resource) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c openapi.ResourceCondition) bool {
		return c.Type == "Reconciled" && c.Status == "True" && c.ObservedGeneration == r.Generation
	})
}

// settled waits until everything in the API is reconciled.
func (w *world) settled(what string) {
	w.t.Helper()
	w.eventually(what, func() string {
		left := []string{}
		all := w.list("resources", "")

		for i := range all {
			if !reconciled(&all[i]) {
				left = append(left, all[i].Name)
			}
		}

		if len(left) == 0 {
			return ""
		}

		return fmt.Sprintf("%d of %d are not reconciled, %s among them", len(left), len(all), left[0])
	})
}

// each does something for all, some at once.
func each[T any](items []T, do func(T)) {
	var (
		group sync.WaitGroup
		next  = make(chan T)
	)

	for range clientsAtOnce {
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
