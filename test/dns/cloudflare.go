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

// CloudflareToken is the API token that the simulator takes.
const CloudflareToken = "cf-token-for-tests-0123456789abcdefghij"

// Cloudflare is a simulator of the part of Cloudflare's API that is about records
// (https://developers.cloudflare.com/api/resources/dns/subresources/records/): zones by
// name, records listed in pages and by filter, made and deleted. Any other call is
// answered 501 and fails the test. It never speaks to the real service.
type Cloudflare struct {
	t      testing.TB
	server *httptest.Server

	mu      sync.Mutex
	zones   []string
	records []CloudflareRecord
	made    int
}

// CloudflareRecord is a record as the API has it.
type CloudflareRecord struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Content string `json:"content"`
	TTL     int    `json:"ttl"`
	zone    string
}

// StartCloudflare starts the simulator with its zones.
func StartCloudflare(t testing.TB, zones ...string) *Cloudflare {
	t.Helper()

	c := &Cloudflare{t: t, zones: zones}
	c.server = httptest.NewServer(c.routes())
	t.Cleanup(c.server.Close)

	return c
}

// Transport leads calls for the real service to the simulator, and no others anywhere.
func (c *Cloudflare) Transport() http.RoundTripper {
	return retry.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if request.URL.Scheme != "https" || request.URL.Host != "api.cloudflare.com" {
			c.t.Errorf("a call to %s", request.URL.Host)
		}

		to := request.Clone(request.Context())
		to.URL.Scheme, to.URL.Host = "http", strings.TrimPrefix(c.server.URL, "http://")

		return http.DefaultTransport.RoundTrip(to)
	})
}

// Records gives all records as "TYPE name content", sorted.
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

// Put adds a record as somebody else.
func (c *Cloudflare) Put(zone string, record CloudflareRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(zone, record)
}

func (c *Cloudflare) put(zone string, record CloudflareRecord) CloudflareRecord {
	c.made++
	record.ID, record.zone = fmt.Sprintf("%032d", c.made), zone
	c.records = append(c.records, record)

	return record
}

func (c *Cloudflare) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /client/v4/zones", c.listZones)
	mux.HandleFunc("GET /client/v4/zones/{zone}/dns_records", c.listRecords)
	mux.HandleFunc("POST /client/v4/zones/{zone}/dns_records", c.makeRecord)
	mux.HandleFunc("DELETE /client/v4/zones/{zone}/dns_records/{id}", c.deleteRecord)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.t.Errorf("Cloudflare has no %s %s here", r.Method, r.URL.Path)
		refuse(w, http.StatusNotImplemented, 0, "unknown call")
	})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+CloudflareToken {
			refuse(w, http.StatusForbidden, 9109, "Invalid access token")

			return
		}

		c.mu.Lock()
		defer c.mu.Unlock()
		mux.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	send(w, map[string]any{
		"success": false, "errors": []any{map[string]any{"code": code, "message": message}}, "messages": []any{}, "result": nil,
	})
}

func reply(w http.ResponseWriter, result any, info map[string]int) {
	w.Header().Set("Content-Type", "application/json")

	body := map[string]any{"success": true, "errors": []any{}, "messages": []any{}, "result": result}
	if info != nil {
		body["result_info"] = info
	}

	send(w, body)
}

func send(w http.ResponseWriter, body map[string]any) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // the simulator's own data
	}

	_, _ = w.Write(raw)
}

// only fails the test when a query has a parameter that the call does not know.
func (c *Cloudflare) only(query url.Values, known ...string) {
	for name := range query {
		if !slices.Contains(known, name) {
			c.t.Errorf("Cloudflare knows no parameter %s here", name)
		}
	}
}

func (c *Cloudflare) listZones(w http.ResponseWriter, r *http.Request) {
	c.only(r.URL.Query(), "name")

	result := []any{}

	for _, zone := range c.zones {
		if zone == strings.TrimSuffix(r.URL.Query().Get("name"), ".") {
			result = append(result, map[string]any{"id": zoneID(zone), "name": zone, "status": "active"})
		}
	}

	reply(w, result, map[string]int{"page": 1, "per_page": 20, "count": len(result), "total_count": len(result)})
}

func zoneID(zone string) string { return "id-" + strings.ReplaceAll(zone, ".", "-") }

func (c *Cloudflare) zone(w http.ResponseWriter, r *http.Request) (string, bool) {
	for _, zone := range c.zones {
		if zoneID(zone) == r.PathValue("zone") {
			return zone, true
		}
	}

	refuse(w, http.StatusNotFound, 7003, "Could not route to the zone, perhaps your object identifier is invalid?")

	return "", false
}

func (c *Cloudflare) listRecords(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.zone(w, r)
	if !ok {
		return
	}

	query := r.URL.Query()
	c.only(query, "page", "per_page", "type", "name", "content.exact", "content.contains")

	found := []CloudflareRecord{}

	for _, record := range c.records {
		if record.zone == zone && matches(record, query) {
			found = append(found, record)
		}
	}

	page, size := number(query, "page", 1), number(query, "per_page", 100)
	from := min((page-1)*size, len(found))
	to := min(from+size, len(found))

	reply(w, found[from:to], map[string]int{"page": page, "per_page": size, "count": to - from, "total_count": len(found)})
}

// matches filters as the API does: the content of a record that is a name has a dot at its
// end when it is read, and is found without it only.
func matches(record CloudflareRecord, query url.Values) bool {
	content := strings.TrimSuffix(record.Content, ".")

	return (query.Get("type") == "" || query.Get("type") == record.Type) &&
		(query.Get("name") == "" || strings.EqualFold(strings.TrimSuffix(query.Get("name"), "."), record.Name)) &&
		(query.Get("content.exact") == "" || query.Get("content.exact") == content) &&
		strings.Contains(record.Content, query.Get("content.contains"))
}

func number(query url.Values, name string, fallback int) int {
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < 1 {
		return fallback
	}

	return n
}

func (c *Cloudflare) makeRecord(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.zone(w, r)
	if !ok {
		return
	}

	var record CloudflareRecord

	// The library sends fields of other types of records, empty.
	if err := json.NewDecoder(r.Body).Decode(&record); err != nil {
		refuse(w, http.StatusBadRequest, 9207, "Request body is invalid.")

		return
	}

	if record.TTL != 1 && (record.TTL < 60 || record.TTL > 86400) {
		refuse(w, http.StatusBadRequest, 9021, "Invalid TTL. Must be between 60 and 86400 seconds, or 1 for Automatic.")

		return
	}

	// A name is taken as relative to the zone unless it ends in it.
	name := strings.ToLower(strings.TrimSuffix(record.Name, "."))
	if name != zone && !strings.HasSuffix(name, "."+zone) {
		name += "." + zone
	}

	record.Name = name
	if record.Type == "PTR" && !strings.HasSuffix(record.Content, ".") {
		record.Content += "."
	}

	for _, there := range c.records {
		if there.zone == zone && there.Type == record.Type && there.Name == record.Name && there.Content == record.Content {
			refuse(w, http.StatusBadRequest, 81058, "An identical record already exists.")

			return
		}
	}

	reply(w, c.put(zone, record), nil)
}

func (c *Cloudflare) deleteRecord(w http.ResponseWriter, r *http.Request) {
	zone, ok := c.zone(w, r)
	if !ok {
		return
	}

	before := len(c.records)
	c.records = slices.DeleteFunc(c.records, func(record CloudflareRecord) bool {
		return record.zone == zone && record.ID == r.PathValue("id")
	})

	if len(c.records) == before {
		refuse(w, http.StatusNotFound, 81044, "Record does not exist.")

		return
	}

	reply(w, map[string]any{"id": r.PathValue("id")}, nil)
}
