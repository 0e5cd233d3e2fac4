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

// Webhook is one delivery as received.
type Webhook struct {
	Header http.Header
	Body   []byte
}

// Receiver records webhooks.
type Receiver struct {
	URL string

	mu     sync.Mutex
	got    []Webhook
	answer func(n int, hook Webhook) int
}

// NewReceiver listens for webhooks on loopback. answer gives the status code for the
// n-th webhook, counted from 1; nil answers 202 to all.
func NewReceiver(t testing.TB, answer func(n int, hook Webhook) int) *Receiver {
	t.Helper()
	r := &Receiver{answer: answer}
	if answer == nil {
		r.Answer(http.StatusAccepted)
	}
	server := httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

func (r *Receiver) take(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	hook := Webhook{Header: req.Header, Body: body}
	r.mu.Lock()
	r.got = append(r.got, hook)
	n, answer := len(r.got), r.answer
	r.mu.Unlock()
	w.WriteHeader(answer(n, hook))
}

// Answer sets the status code of later answers.
func (r *Receiver) Answer(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = func(int, Webhook) int { return code }
}

// Received returns what came so far.
func (r *Receiver) Received() []Webhook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}
