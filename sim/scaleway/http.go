// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const maxBody = 1 << 20

// response is the response to a call.
type response struct {
	status int
	body   any
}

type object map[string]any

func (s *Simulator) routes() *http.ServeMux {
	mux := http.NewServeMux()
	zone := "/apple-silicon/v1alpha1/zones/{zone}"

	for pattern, handle := range map[string]func(*http.Request) response{
		"GET " + zone + "/servers":                 s.listServers,
		"POST " + zone + "/servers":                s.createServer,
		"GET " + zone + "/servers/{id}":            s.withServer(s.getServer),
		"PATCH " + zone + "/servers/{id}":          s.withServer(s.updateServer),
		"DELETE " + zone + "/servers/{id}":         s.withServer(s.deleteServer),
		"POST " + zone + "/servers/{id}/reboot":    s.withServer(s.rebootServer),
		"POST " + zone + "/servers/{id}/reinstall": s.withServer(s.reinstallServer),
		"GET " + zone + "/os":                      s.listOS,
		"GET " + zone + "/server-type/{type}":      s.getType,
		"GET /iam/v1alpha1/ssh-keys":               s.listKeys,
		"POST /iam/v1alpha1/ssh-keys":              s.createKey,
	} {
		mux.Handle(pattern, s.handleCall(handle))
	}

	mux.Handle("/", s.handleCall(func(r *http.Request) response {
		s.recordViolation(r, "the simulator does not implement this call")

		return response{http.StatusNotImplemented, object{"message": "the simulator does not implement this call"}}
	}))

	return mux
}

// ServeHTTP serves the API.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

var idPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// handleCall returns a handler that does what all calls have in common: the lock, the fault, the API
// key and the zone.
func (s *Simulator) handleCall(handle func(*http.Request) response) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls[r.Method+" "+idPattern.ReplaceAllString(r.URL.Path, "ID")]++
		fault := s.takeFault(r)

		reply := response{fault.Status, newErrorBody(fault.Type, r)}
		if fault.Status == 0 || fault.RunsCall {
			if result := s.runCall(handle, r); fault.Status == 0 {
				reply = result
			}
		}
		s.mu.Unlock()

		if !waitDelay(r, fault.Delay) {
			return
		}

		send(w, reply)
	}
}

// runCall checks the API key and the zone and runs the call. The caller holds the lock.
func (s *Simulator) runCall(handle func(*http.Request) response, r *http.Request) response {
	s.completeDue()

	if token := r.Header.Get("X-Auth-Token"); subtle.ConstantTimeCompare([]byte(token), []byte(s.opts.SecretKey)) != 1 {
		return newErrorResponse(http.StatusUnauthorized, object{
			"type": "denied_authentication", "method": "api_key", "reason": "not_found", "message": "authentication is denied",
		})
	}

	if zone := r.PathValue("zone"); zone != "" && zone != s.opts.Zone {
		return newErrorResponse(http.StatusNotFound, newNotFoundBody("zone", zone))
	}

	return handle(r)
}

// waitDelay waits for the delay and returns false if the client disconnects before the delay is
// over.
func waitDelay(r *http.Request, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}

	timer := time.NewTimer(delay)
	defer timer.Stop()

	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func newErrorBody(kind string, r *http.Request) object {
	body := object{"message": "an injected fault", "type": kind, "resource": "apple_silicon_server"}

	switch kind {
	case "":
		delete(body, "type")
		delete(body, "resource")
	case "quotas_exceeded":
		body["details"] = []object{{"resource": "apple_silicon_servers", "quota": 1, "current": 1}}
	case "transient_state":
		body["resource_id"], body["current_state"] = r.PathValue("id"), statusRebooting
	case "invalid_arguments":
		body["details"] = []object{{"argument_name": "name", "reason": "constraint", "help_message": ""}}
	default:
	}

	return body
}

func send(w http.ResponseWriter, reply response) {
	if reply.body == nil {
		w.WriteHeader(reply.status)

		return
	}

	text, err := json.Marshal(reply.body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(reply.status)
	_, _ = w.Write(text)
}

func newErrorResponse(status int, body object) response { return response{status, body} }

func newNotFoundBody(resource, id string) object {
	return object{"type": "not_found", "resource": resource, "resource_id": id, "message": "resource is not found"}
}

func newInvalidResponse(argument, help string) response {
	return newErrorResponse(http.StatusBadRequest, object{
		"type": "invalid_arguments", "message": "invalid argument(s)",
		"details": []object{{"argument_name": argument, "reason": "constraint", "help_message": help}},
	})
}

// decodeBody decodes a body. It records a violation and returns an error if the body has a field
// that the API does not have or if its Content-Type is not application/json.
func (s *Simulator) decodeBody(r *http.Request, target any) error {
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()

	err := decoder.Decode(target)
	if err == nil && r.Header.Get("Content-Type") != "application/json" {
		err = errors.New("the Content-Type is not application/json")
	}

	if err != nil {
		s.recordViolation(r, "decode body: "+err.Error())

		return fmt.Errorf("decode body: %w", err)
	}

	return nil
}

// cutPage returns the page of a list that the query parameters page and page_size select. It returns
// an error if a parameter is invalid.
func cutPage[T any](r *http.Request, all []T) ([]T, error) {
	number, size := 1, 20

	for name, target := range map[string]*int{"page": &number, "page_size": &size} {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}

		value, err := strconv.Atoi(text)
		if err != nil || value < 1 || name == "page_size" && value > 100 {
			return nil, fmt.Errorf("invalid %s %q", name, text)
		}

		*target = value
	}

	start := min((number-1)*size, len(all))

	return slices.Clone(all[start:min(start+size, len(all))]), nil
}
