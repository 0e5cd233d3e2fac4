// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// IndexType is the media type of the manifests: an image for several architectures.
const IndexType = "application/vnd.docker.distribution.manifest.list.v2+json"

// Options of a Server.
type Options struct {
	// Users are passwords by name. Without any, everybody may read everything.
	Users map[string]string
	// Basic asks for the password itself and not for a token.
	Basic bool
	// TokenLife is how long a token is good for. Default: five minutes.
	TokenLife time.Duration
	// Clock tells the time. Default: the real one.
	Clock clock.Clock
}

// Fault is a rule of what goes wrong with requests for manifests and tokens.
type Fault struct {
	// Status answers instead of the registry, where it is not 0.
	Status int
	// Delay before an answer.
	Delay time.Duration
	// Count of requests that it meets; 0: all.
	Count int
}

// Server is a simulated registry. Its methods are safe for concurrent use.
type Server struct {
	options Options

	mu sync.Mutex
	// images are digests by repository and tag, and contents by repository and digest.
	images   map[string]map[string]string
	contents map[string]map[string][]byte
	tokens   map[string]grant
	issued   int
	fault    *Fault
	calls    map[string]int
	// violations are requests that no client of a registry makes.
	violations []string
}

// grant is what a token is good for.
type grant struct {
	user, scope string
	until       time.Time
}

// New makes a registry without images.
func New(options Options) *Server {
	if options.TokenLife == 0 {
		options.TokenLife = 5 * time.Minute
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	return &Server{
		options: options, images: map[string]map[string]string{}, contents: map[string]map[string][]byte{},
		tokens: map[string]grant{}, calls: map[string]int{},
	}
}

// Push puts an image into a repository and gives its digest. The tag may be empty.
func (s *Server) Push(repository, tag string) string {
	s.mu.Lock()
	defer s.mu.Unlock()

	body := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"name":%q}}`,
		IndexType, repository+":"+tag)
	sum := sha256.Sum256(body)
	digest := "sha256:" + hex.EncodeToString(sum[:])

	if s.images[repository] == nil {
		s.images[repository], s.contents[repository] = map[string]string{}, map[string][]byte{}
	}

	s.contents[repository][digest] = body
	if tag != "" {
		s.images[repository][tag] = digest
	}

	return digest
}

// SetFault changes what goes wrong; nil: nothing.
func (s *Server) SetFault(fault *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.fault = fault
}

// Calls counts the requests by METHOD PATH.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.calls)
}

// Violations are requests that a correct client does not make.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.violations)
}

// ServeHTTP answers as a registry.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls[r.Method+" "+r.URL.Path]++
	s.mu.Unlock()

	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")

	if s.interfere(w, r) {
		return
	}

	repository, reference, manifest := manifestPath(r.URL.Path)

	switch read := r.Method == http.MethodGet || r.Method == http.MethodHead; {
	case r.URL.Path == "/v2/" && read:
		if s.allowed(w, r, "") {
			w.WriteHeader(http.StatusOK)
		}
	case r.URL.Path == tokenPath && r.Method == http.MethodGet && !s.options.Basic:
		s.token(w, r)
	case manifest && read:
		if s.allowed(w, r, repository) {
			s.manifest(w, r, repository, reference)
		}
	default:
		s.violation(w, r.Method+" "+r.URL.Path+" is not played")
	}
}

func (s *Server) violation(w http.ResponseWriter, what string) {
	s.mu.Lock()
	s.violations = append(s.violations, what)
	s.mu.Unlock()

	fail(w, http.StatusNotImplemented, "UNSUPPORTED", what)
}

// interfere does what a fault says, and tells whether it has answered.
func (s *Server) interfere(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()

	fault := s.fault
	if fault == nil {
		s.mu.Unlock()

		return false
	}

	now := *fault
	if fault.Count == 1 {
		s.fault = nil
	} else if fault.Count > 1 {
		s.fault = &Fault{Status: fault.Status, Delay: fault.Delay, Count: fault.Count - 1}
	}
	s.mu.Unlock()

	if now.Delay > 0 {
		select {
		case <-s.options.Clock.After(now.Delay):
		case <-r.Context().Done():
			return true
		}
	}

	if now.Status == 0 {
		return false
	}

	if now.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}

	fail(w, now.Status, "UNKNOWN", http.StatusText(now.Status))

	return true
}

func manifestPath(path string) (repository, reference string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	if !ok {
		return "", "", false
	}

	repository, reference, ok = strings.Cut(rest, "/manifests/")

	return repository, reference, ok && repository != "" && reference != "" && !strings.Contains(reference, "/")
}

func (s *Server) manifest(w http.ResponseWriter, r *http.Request, repository, reference string) {
	s.mu.Lock()
	tags, known := s.images[repository]

	digest := reference
	if tagged, ok := tags[reference]; ok {
		digest = tagged
	}

	body, found := s.contents[repository][digest]
	s.mu.Unlock()

	switch {
	case !known:
		fail(w, http.StatusNotFound, "NAME_UNKNOWN", "repository name not known to registry")
	case !found:
		fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
	case !accepts(r):
		fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest list found, but accept header does not support manifest lists")
	default:
		w.Header().Set("Content-Type", IndexType)
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)

		if r.Method == http.MethodGet {
			_, _ = w.Write(body) // the client may have gone
		}
	}
}

func accepts(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept") {
		for kind := range strings.SplitSeq(header, ",") {
			kind, _, _ = strings.Cut(strings.TrimSpace(kind), ";")
			if kind == IndexType || kind == "*/*" {
				return true
			}
		}
	}

	return false
}
