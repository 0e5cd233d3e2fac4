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

// answer to a call.
type answer struct {
	status int
	body   any
}

type object map[string]any

func (s *Simulator) routes() *http.ServeMux {
	mux := http.NewServeMux()
	zone := "/apple-silicon/v1alpha1/zones/{zone}"

	for pattern, handle := range map[string]func(*http.Request) answer{
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
		mux.Handle(pattern, s.call(handle))
	}

	mux.Handle("/", s.call(func(r *http.Request) answer {
		s.violate(r, "there is no such call")

		return answer{http.StatusNotImplemented, object{"message": "there is no such call"}}
	}))

	return mux
}

// ServeHTTP serves the API.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

var idForm = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// call does what all calls have in common: faults, the key, the zone, the lock.
func (s *Simulator) call(handle func(*http.Request) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls[r.Method+" "+idForm.ReplaceAllString(r.URL.Path, "ID")]++
		fault := s.fault(r)

		out := answer{fault.Status, errorBody(fault.Type, r)}
		if fault.Status == 0 || fault.Late {
			if done := s.answer(handle, r); fault.Status == 0 {
				out = done
			}
		}
		s.mu.Unlock()

		if !pause(r, fault.Delay) {
			return
		}

		send(w, out)
	}
}

// answer is the call itself. The lock is held.
func (s *Simulator) answer(handle func(*http.Request) answer, r *http.Request) answer {
	s.settle()

	if token := r.Header.Get("X-Auth-Token"); subtle.ConstantTimeCompare([]byte(token), []byte(s.opts.SecretKey)) != 1 {
		return refuse(http.StatusUnauthorized, object{
			"type": "denied_authentication", "method": "api_key", "reason": "not_found", "message": "authentication is denied",
		})
	}

	if zone := r.PathValue("zone"); zone != "" && zone != s.opts.Zone {
		return refuse(http.StatusNotFound, notFound("zone", zone))
	}

	return handle(r)
}

// pause gives false if the caller went.
func pause(r *http.Request, delay time.Duration) bool {
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

func errorBody(kind string, r *http.Request) object {
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

func send(w http.ResponseWriter, out answer) {
	if out.body == nil {
		w.WriteHeader(out.status)

		return
	}

	text, err := json.Marshal(out.body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(out.status)
	_, _ = w.Write(text)
}

func refuse(status int, body object) answer { return answer{status, body} }

func notFound(resource, id string) object {
	return object{"type": "not_found", "resource": resource, "resource_id": id, "message": "resource is not found"}
}

func invalid(argument, help string) answer {
	return refuse(http.StatusBadRequest, object{
		"type": "invalid_arguments", "message": "invalid argument(s)",
		"details": []object{{"argument_name": argument, "reason": "constraint", "help_message": help}},
	})
}

// read reads a body without fields that the API does not have.
func (s *Simulator) read(r *http.Request, into any) error {
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()

	err := decoder.Decode(into)
	if err == nil && r.Header.Get("Content-Type") != "application/json" {
		err = errors.New("the body is not application/json by its Content-Type")
	}

	if err != nil {
		s.violate(r, "read the body: "+err.Error())

		return fmt.Errorf("read the body: %w", err)
	}

	return nil
}

// page cuts a page out of a list, as ?page= and ?page_size= ask.
func page[T any](r *http.Request, all []T) ([]T, error) {
	number, size := 1, 20

	for name, into := range map[string]*int{"page": &number, "page_size": &size} {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}

		value, err := strconv.Atoi(text)
		if err != nil || value < 1 || name == "page_size" && value > 100 {
			return nil, fmt.Errorf("%s %q", name, text)
		}

		*into = value
	}

	from := min((number-1)*size, len(all))

	return slices.Clone(all[from:min(from+size, len(all))]), nil
}
