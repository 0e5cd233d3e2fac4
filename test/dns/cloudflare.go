// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// CloudflareToken is the API token that the simulator accepts.
const CloudflareToken = "cf-token-for-tests-0123456789abcdefghij"

// Cloudflare simulates the part of Cloudflare's API that manages DNS records
// (https://developers.cloudflare.com/api/resources/dns/subresources/records/). It finds zones by name,
// lists records with pages and filters, and creates and deletes records. Any other call gets status 501
// and fails the test. The simulator never calls the real service.
type Cloudflare struct {
	t      testing.TB
	server *httptest.Server

	mu          sync.Mutex
	zones       []string
	records     []CloudflareRecord
	recordCount int
}

// CloudflareRecord is a DNS record of Cloudflare's API.
type CloudflareRecord struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Content string `json:"content"`
	TTL     int    `json:"ttl"`
	zone    string
}

// StartCloudflare starts the simulator with the zones.
func StartCloudflare(t testing.TB, zones ...string) *Cloudflare {
	t.Helper()

	c := &Cloudflare{t: t, zones: zones}
	c.server = httptest.NewServer(c.routes())
	t.Cleanup(c.server.Close)

	return c
}

// Transport returns a transport that redirects calls to the real service to the simulator. A call to any
// other host fails the test.
func (c *Cloudflare) Transport() http.RoundTripper {
	return retry.RoundTripperFunc(func(request *http.Request) (*http.Response, error) {
		if request.URL.Scheme != "https" || request.URL.Host != "api.cloudflare.com" {
			c.t.Errorf("the client called %s, want api.cloudflare.com", request.URL.Host)
		}

		redirected := request.Clone(request.Context())
		redirected.URL.Scheme, redirected.URL.Host = "http", strings.TrimPrefix(c.server.URL, "http://")

		return http.DefaultTransport.RoundTrip(redirected)
	})
}

// Records returns all records as "TYPE name content", sorted.
func (c *Cloudflare) Records() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	out := []string{}
	for _, r := range c.records {
		out = append(out, r.Type+" "+r.Name+" "+r.Content)
	}

	slices.Sort(out)

	return out
}

// AddRecord adds a record as another user of the API would.
func (c *Cloudflare) AddRecord(zone string, record CloudflareRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addRecord(zone, record)
}

func (c *Cloudflare) addRecord(zone string, record CloudflareRecord) CloudflareRecord {
	c.recordCount++
	record.ID, record.zone = fmt.Sprintf("%032d", c.recordCount), zone
	c.records = append(c.records, record)

	return record
}

func (c *Cloudflare) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /client/v4/zones", c.listZones)
	mux.HandleFunc("GET /client/v4/zones/{zone}/dns_records", c.listRecords)
	mux.HandleFunc("POST /client/v4/zones/{zone}/dns_records", c.createRecord)
	mux.HandleFunc("DELETE /client/v4/zones/{zone}/dns_records/{id}", c.deleteRecord)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.t.Errorf("the Cloudflare simulator does not support %s %s", r.Method, r.URL.Path)
		writeError(w, http.StatusNotImplemented, 0, "unknown call")
	})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+CloudflareToken {
			writeError(w, http.StatusForbidden, 9109, "Invalid access token")

			return
		}

		c.mu.Lock()
		defer c.mu.Unlock()
		mux.ServeHTTP(w, r)
	})
}

func writeError(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	writeJSON(w, map[string]any{
		"success": false, "errors": []any{map[string]any{"code": code, "message": message}}, "messages": []any{}, "result": nil,
	})
}

func writeResult(w http.ResponseWriter, result any, info map[string]int) {
	w.Header().Set("Content-Type", "application/json")

	body := map[string]any{"success": true, "errors": []any{}, "messages": []any{}, "result": result}
	if info != nil {
		body["result_info"] = info
	}

	writeJSON(w, body)
}

func writeJSON(w http.ResponseWriter, body map[string]any) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // the simulator's own data can always be encoded
	}

	_, _ = w.Write(raw)
}

// checkParameters fails the test if a query has a parameter that the call does not support.
func (c *Cloudflare) checkParameters(query url.Values, known ...string) {
	for name := range query {
		if !slices.Contains(known, name) {
			c.t.Errorf("the Cloudflare simulator does not support parameter %s in this call", name)
		}
	}
}

func (c *Cloudflare) listZones(w http.ResponseWriter, r *http.Request) {
	c.checkParameters(r.URL.Query(), "name")

	result := []any{}

	for _, zone := range c.zones {
		if zone == strings.TrimSuffix(r.URL.Query().Get("name"), ".") {
			result = append(result, map[string]any{"id": zoneID(zone), "name": zone, "status": "active"})
		}
	}

	writeResult(w, result, map[string]int{"page": 1, "per_page": 20, "count": len(result), "total_count": len(result)})
}

func zoneID(zone string) string { return "id-" + strings.ReplaceAll(zone, ".", "-") }

func (c *Cloudflare) findZone(w http.ResponseWriter, r *http.Request) (string, bool) {
	for _, zone := range c.zones {
		if zoneID(zone) == r.PathValue("zone") {
			return zone, true
		}
	}

	writeError(w, http.StatusNotFound, 7003, "Could not route to the zone, perhaps your object identifier is invalid?")

	return "", false
}

func (c *Cloudflare) listRecords(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.findZone(w, r)
	if !ok {
		return
	}

	query := r.URL.Query()
	c.checkParameters(query, "page", "per_page", "type", "name", "content.exact", "content.contains")

	found := []CloudflareRecord{}

	for _, record := range c.records {
		if record.zone == zone && matchesFilter(record, query) {
			found = append(found, record)
		}
	}

	page, size := parseNumber(query, "page", 1), parseNumber(query, "per_page", 100)
	from := min((page-1)*size, len(found))
	to := min(from+size, len(found))

	writeResult(w, found[from:to], map[string]int{"page": page, "per_page": size, "count": to - from, "total_count": len(found)})
}

// matchesFilter returns true if a record matches the filters of a query. As in the API, content that is a
// host name ends with a dot in responses, but the filter content.exact must not have that dot.
func matchesFilter(record CloudflareRecord, query url.Values) bool {
	content := strings.TrimSuffix(record.Content, ".")

	return (query.Get("type") == "" || query.Get("type") == record.Type) &&
		(query.Get("name") == "" || strings.EqualFold(strings.TrimSuffix(query.Get("name"), "."), record.Name)) &&
		(query.Get("content.exact") == "" || query.Get("content.exact") == content) &&
		strings.Contains(record.Content, query.Get("content.contains"))
}

func parseNumber(query url.Values, name string, fallback int) int {
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < 1 {
		return fallback
	}

	return n
}

func (c *Cloudflare) createRecord(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.findZone(w, r)
	if !ok {
		return
	}

	var record CloudflareRecord

	// Ignore unknown fields, because the client library also sends empty fields of other record types.
	if err := json.NewDecoder(r.Body).Decode(&record); err != nil {
		writeError(w, http.StatusBadRequest, 9207, "Request body is invalid.")

		return
	}

	if record.TTL != 1 && (record.TTL < 60 || record.TTL > 86400) {
		writeError(w, http.StatusBadRequest, 9021, "Invalid TTL. Must be between 60 and 86400 seconds, or 1 for Automatic.")

		return
	}

	// A name that does not end with the zone is relative to the zone.
	name := strings.ToLower(strings.TrimSuffix(record.Name, "."))
	if name != zone && !strings.HasSuffix(name, "."+zone) {
		name += "." + zone
	}

	record.Name = name
	if record.Type == "PTR" && !strings.HasSuffix(record.Content, ".") {
		record.Content += "."
	}

	for _, existing := range c.records {
		if existing.zone == zone && existing.Type == record.Type && existing.Name == record.Name && existing.Content == record.Content {
			writeError(w, http.StatusBadRequest, 81058, "An identical record already exists.")

			return
		}
	}

	writeResult(w, c.addRecord(zone, record), nil)
}

func (c *Cloudflare) deleteRecord(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.findZone(w, r)
	if !ok {
		return
	}

	before := len(c.records)
	c.records = slices.DeleteFunc(c.records, func(record CloudflareRecord) bool {
		return record.zone == zone && record.ID == r.PathValue("id")
	})

	if len(c.records) == before {
		writeError(w, http.StatusNotFound, 81044, "Record does not exist.")

		return
	}

	writeResult(w, map[string]any{"id": r.PathValue("id")}, nil)
}
