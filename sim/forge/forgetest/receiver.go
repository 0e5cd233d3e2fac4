// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgetest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// Webhook is one received delivery.
type Webhook struct {
	Header http.Header
	Body   []byte
}

// Receiver records webhooks.
type Receiver struct {
	URL string

	mu       sync.Mutex
	webhooks []Webhook
	respond  func(n int, hook Webhook) int
}

// NewReceiver starts a webhook receiver on loopback. respond returns the status code for the n-th
// webhook, counted from 1. If respond is nil, the receiver responds with 202.
func NewReceiver(t testing.TB, respond func(n int, hook Webhook) int) *Receiver {
	t.Helper()
	r := &Receiver{respond: respond}
	if respond == nil {
		r.SetStatus(http.StatusAccepted)
	}
	server := httptest.NewServer(http.HandlerFunc(r.receive))
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	hook := Webhook{Header: req.Header, Body: body}
	r.mu.Lock()
	r.webhooks = append(r.webhooks, hook)
	n, respond := len(r.webhooks), r.respond
	r.mu.Unlock()
	w.WriteHeader(respond(n, hook))
}

// SetStatus sets the status code of later responses.
func (r *Receiver) SetStatus(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.respond = func(int, Webhook) int { return code }
}

// Webhooks returns the webhooks received so far.
func (r *Receiver) Webhooks() []Webhook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.webhooks)
}
