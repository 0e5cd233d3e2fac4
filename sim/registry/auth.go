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

// allowed tells whether a request may read of a repository, and answers it if not. An
// empty repository asks only whether the login is good.
func (s *Server) allowed(w http.ResponseWriter, r *http.Request, repository string) bool {
	if len(s.options.Users) == 0 {
		return true
	}

	if s.options.Basic {
		user, password, given := r.BasicAuth()
		if given && s.knows(user, password) {
			return true
		}

		w.Header().Set("WWW-Authenticate", `Basic realm="Registry"`)
		fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")

		return false
	}

	scope := ""
	if repository != "" {
		scope = "repository:" + repository + ":pull"
	}

	token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")

	s.mu.Lock()
	granted, known := s.tokens[token]
	s.mu.Unlock()

	challenge := fmt.Sprintf(`Bearer realm="https://%s%s",service=%q`, r.Host, tokenPath, service)
	if scope != "" {
		challenge += fmt.Sprintf(`,scope=%q`, scope)
	}

	switch {
	case !given:
	case !known || s.options.Clock.Now().After(granted.until):
		challenge += `,error="invalid_token"`
	case granted.user == "" || scope != "" && granted.scope != scope:
		challenge += `,error="insufficient_scope"`
	default:
		return true
	}

	w.Header().Set("WWW-Authenticate", challenge)
	fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "access to the requested resource is not authorized")

	return false
}

func (s *Server) knows(user, password string) bool {
	want, ok := s.options.Users[user]

	return ok && want == password
}

// token gives a token for a scope. Without a login it is good for nothing, as it is for a
// private repository of real registries.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()

	if query.Get("service") != service {
		s.violation(w, fmt.Sprintf("token for service %q, the challenge said %q", query.Get("service"), service))

		return
	}

	user, password, given := r.BasicAuth()
	if given && !s.knows(user, password) {
		fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")

		return
	}

	now := s.options.Clock.Now()

	s.mu.Lock()
	s.issued++
	token := fmt.Sprintf("token-%d", s.issued)
	s.tokens[token] = grant{user: user, scope: query.Get("scope"), until: now.Add(s.options.TokenLife)}
	s.mu.Unlock()

	answer(w, http.StatusOK, struct {
		Token     string `json:"token"`
		ExpiresIn int    `json:"expires_in"`
		IssuedAt  string `json:"issued_at"`
	}{token, int(s.options.TokenLife.Seconds()), now.UTC().Format(time.RFC3339)})
}

type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// fail answers with an error of the distribution specification.
func fail(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, struct {
		Errors []problem `json:"errors"`
	}{[]problem{{code, message}}})
}

func answer[T any](w http.ResponseWriter, status int, body T) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)

	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers can be written
	}

	_, _ = w.Write(raw) // the client may have gone
}
