// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	tokenPath = "/auth/token"
	service   = "registry.example.com"
)

// authorize returns true if the request may read the repository. If not, authorize writes the error
// response and returns false. If repository is empty, authorize checks only the credential.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request, repository string) bool {
	if len(s.options.Users) == 0 {
		return true
	}

	if s.options.Basic {
		user, password, hasCredential := r.BasicAuth()
		if hasCredential && s.isValidLogin(user, password) {
			return true
		}

		w.Header().Set("WWW-Authenticate", `Basic realm="Registry"`)
		writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")

		return false
	}

	scope := ""
	if repository != "" {
		scope = "repository:" + repository + ":pull"
	}

	token, hasCredential := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")

	s.mu.Lock()
	granted, known := s.tokens[token]
	s.mu.Unlock()

	challenge := fmt.Sprintf(`Bearer realm="https://%s%s",service=%q`, r.Host, tokenPath, service)
	if scope != "" {
		challenge += fmt.Sprintf(`,scope=%q`, scope)
	}

	switch {
	case !hasCredential:
	case !known || s.options.Clock.Now().After(granted.expires):
		challenge += `,error="invalid_token"`
	case granted.user == "" || scope != "" && granted.scope != scope:
		challenge += `,error="insufficient_scope"`
	default:
		return true
	}

	w.Header().Set("WWW-Authenticate", challenge)
	writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "access to the requested resource is not authorized")

	return false
}

func (s *Server) isValidLogin(user, password string) bool {
	expected, ok := s.options.Users[user]

	return ok && expected == password
}

// issueToken issues a token for a scope. A token that is issued without a login grants nothing, as
// for a private repository of a real registry.
func (s *Server) issueToken(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()

	if query.Get("service") != service {
		s.recordViolation(w, fmt.Sprintf("request for a token of service %q, but the challenge names %q",
			query.Get("service"), service))

		return
	}

	user, password, hasCredential := r.BasicAuth()
	if hasCredential && !s.isValidLogin(user, password) {
		writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")

		return
	}

	now := s.options.Clock.Now()

	s.mu.Lock()
	s.issued++
	token := fmt.Sprintf("token-%d", s.issued)
	s.tokens[token] = grant{user: user, scope: query.Get("scope"), expires: now.Add(s.options.TokenLifetime)}
	s.mu.Unlock()

	writeJSON(w, http.StatusOK, struct {
		Token     string `json:"token"`
		ExpiresIn int    `json:"expires_in"`
		IssuedAt  string `json:"issued_at"`
	}{token, int(s.options.TokenLifetime.Seconds()), now.UTC().Format(time.RFC3339)})
}

type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// writeError writes an error in the format of the distribution specification.
func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, struct {
		Errors []apiError `json:"errors"`
	}{[]apiError{{code, message}}})
}

func writeJSON[T any](w http.ResponseWriter, status int, body T) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)

	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}

	_, _ = w.Write(raw) // the client may have disconnected
}
