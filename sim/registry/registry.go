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

// IndexType is the media type of all manifests of the simulator: a list for several architectures.
const IndexType = "application/vnd.docker.distribution.manifest.list.v2+json"

// Options configures a Server.
type Options struct {
	// Users holds passwords by user name. If Users is empty, every client may read every repository.
	Users map[string]string
	// Basic makes the server use HTTP basic authentication instead of tokens.
	Basic bool
	// TokenLifetime is how long a token is valid. Default: five minutes.
	TokenLifetime time.Duration
	// Clock is the server's clock. Default: the real clock.
	Clock clock.Clock
}

// Fault makes requests for manifests and tokens fail or take longer.
type Fault struct {
	// Status is the HTTP status of the error response that the server writes instead of its own
	// response. If Status is 0, the server writes its own response.
	Status int
	// Delay is how long the server waits before it writes a response.
	Delay time.Duration
	// Count is the number of requests that the fault affects. 0 means all requests.
	Count int
}

// Server is a simulated registry. Its methods are safe for concurrent use.
type Server struct {
	options Options

	mu sync.Mutex
	// images holds digests by repository and tag; contents holds manifests by repository and digest.
	images   map[string]map[string]string
	contents map[string]map[string][]byte
	tokens   map[string]grant
	issued   int
	fault    *Fault
	calls    map[string]int
	// violations holds requests that no client of a registry makes.
	violations []string
}

// grant is what a token permits.
type grant struct {
	user, scope string
	expires     time.Time
}

// New returns a registry without images.
func New(options Options) *Server {
	if options.TokenLifetime == 0 {
		options.TokenLifetime = 5 * time.Minute
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	return &Server{
		options: options, images: map[string]map[string]string{}, contents: map[string]map[string][]byte{},
		tokens: map[string]grant{}, calls: map[string]int{},
	}
}

// Push adds an image to a repository and returns the image's digest. If tag is empty, the image has
// no tag.
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

// SetFault replaces the current fault. nil removes it.
func (s *Server) SetFault(fault *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.fault = fault
}

// Calls returns the number of requests by "METHOD PATH".
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.calls)
}

// Violations returns the requests that a correct client does not make.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.violations)
}

// ServeHTTP serves the registry API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls[r.Method+" "+r.URL.Path]++
	s.mu.Unlock()

	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")

	if s.injectFault(w, r) {
		return
	}

	repository, reference, isManifest := parseManifestPath(r.URL.Path)

	switch isRead := r.Method == http.MethodGet || r.Method == http.MethodHead; {
	case r.URL.Path == "/v2/" && isRead:
		if s.authorize(w, r, "") {
			w.WriteHeader(http.StatusOK)
		}
	case r.URL.Path == tokenPath && r.Method == http.MethodGet && !s.options.Basic:
		s.issueToken(w, r)
	case isManifest && isRead:
		if s.authorize(w, r, repository) {
			s.serveManifest(w, r, repository, reference)
		}
	default:
		s.recordViolation(w, r.Method+" "+r.URL.Path+" is not implemented by the simulator")
	}
}

func (s *Server) recordViolation(w http.ResponseWriter, message string) {
	s.mu.Lock()
	s.violations = append(s.violations, message)
	s.mu.Unlock()

	writeError(w, http.StatusNotImplemented, "UNSUPPORTED", message)
}

// injectFault applies the current fault to the request. It returns true if it has written a response
// or if the client has disconnected.
func (s *Server) injectFault(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()

	fault := s.fault
	if fault == nil {
		s.mu.Unlock()

		return false
	}

	active := *fault
	if fault.Count == 1 {
		s.fault = nil
	} else if fault.Count > 1 {
		s.fault = &Fault{Status: fault.Status, Delay: fault.Delay, Count: fault.Count - 1}
	}
	s.mu.Unlock()

	if active.Delay > 0 {
		select {
		case <-s.options.Clock.After(active.Delay):
		case <-r.Context().Done():
			return true
		}
	}

	if active.Status == 0 {
		return false
	}

	if active.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}

	writeError(w, active.Status, "UNKNOWN", http.StatusText(active.Status))

	return true
}

func parseManifestPath(path string) (repository, reference string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	if !ok {
		return "", "", false
	}

	repository, reference, ok = strings.Cut(rest, "/manifests/")

	return repository, reference, ok && repository != "" && reference != "" && !strings.Contains(reference, "/")
}

func (s *Server) serveManifest(w http.ResponseWriter, r *http.Request, repository, reference string) {
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
		writeError(w, http.StatusNotFound, "NAME_UNKNOWN", "repository name not known to registry")
	case !found:
		writeError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
	case !acceptsIndex(r):
		writeError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest list found, but accept header does not support manifest lists")
	default:
		w.Header().Set("Content-Type", IndexType)
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)

		if r.Method == http.MethodGet {
			_, _ = w.Write(body) // the client may have disconnected
		}
	}
}

func acceptsIndex(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept") {
		for mediaType := range strings.SplitSeq(header, ",") {
			mediaType, _, _ = strings.Cut(strings.TrimSpace(mediaType), ";")
			if mediaType == IndexType || mediaType == "*/*" {
				return true
			}
		}
	}

	return false
}
