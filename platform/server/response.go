// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// decodeBody decodes the body of a request, which matches the OpenAPI document.
func decodeBody[T any](r *http.Request) (body T, err error) {
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return body, newMalformed(fmt.Errorf("decode JSON body: %w", err))
	}

	return body, nil
}

// writeResponse writes the response of an operation, or its error.
func (s *Server) writeResponse(w http.ResponseWriter, r *http.Request, out response, err error) {
	if err == nil {
		err = out.write(w)
	}

	if err != nil {
		s.writeError(w, r, err)
	}
}

// response is the result of every operation: a status, and a body unless the status is 204.
type response struct {
	status int
	body   any
}

func (a response) write(w http.ResponseWriter) error {
	w.Header().Set("Cache-Control", "no-store")

	if a.body == nil {
		w.WriteHeader(a.status)

		return nil
	}

	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(a.body); err != nil {
		return fmt.Errorf("encode response: %w", err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)

	_, err := body.WriteTo(w)

	return err
}
