// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// answer is what every operation gives: a status and, but for 204, a body.
type answer struct {
	status int
	body   any
}

func (a answer) write(w http.ResponseWriter) error {
	w.Header().Set("Cache-Control", "no-store")

	if a.body == nil {
		w.WriteHeader(a.status)

		return nil
	}

	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(a.body); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)

	_, err := body.WriteTo(w)

	return err
}
