// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Route53Key is the access key id that the simulator accepts.
const Route53Key = "AKIAFORTESTSONLY0000"

const route53Namespace = "https://route53.amazonaws.com/doc/2013-04-01/"

// Route53 simulates the part of Amazon Route 53's API that manages record sets
// (https://docs.aws.amazon.com/Route53/latest/APIReference/). It finds zones by name, lists record sets in
// pages, and applies changes. A DELETE must specify the record set exactly as it is. Any other call gets
// status 501 and fails the test. The simulator checks the access key of a call, but not its signature.
type Route53 struct {
	t        testing.TB
	server   *httptest.Server
	pageSize int

	mu    sync.Mutex
	zones []string
	sets  map[string]RecordSet
}

// RecordSet holds all records of one name and type.
type RecordSet struct {
	Name    string        `xml:"Name"`
	Type    string        `xml:"Type"`
	TTL     int64         `xml:"TTL"`
	Records []RecordValue `xml:"ResourceRecords>ResourceRecord"`
}

// RecordValue is the value of one record of a set.
type RecordValue struct {
	Value string `xml:"Value"`
}

// NewRecordSet returns a RecordSet.
func NewRecordSet(name, kind string, ttl int64, values ...string) RecordSet {
	set := RecordSet{Name: name, Type: kind, TTL: ttl}
	for _, value := range values {
		set.Records = append(set.Records, RecordValue{Value: value})
	}

	return set
}

// StartRoute53 starts the simulator with the zones. Lists of record sets have page sets on each page.
func StartRoute53(t testing.TB, page int, zones ...string) *Route53 {
	t.Helper()

	r := &Route53{t: t, pageSize: page, zones: zones, sets: map[string]RecordSet{}}
	for _, zone := range zones {
		r.PutRecordSet(NewRecordSet(zone+".", "NS", 172800, "ns-1.example.net."))
	}

	r.server = httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	t.Cleanup(r.server.Close)

	return r
}

// URL returns the URL of the simulator, for AWS_ENDPOINT_URL_ROUTE_53.
func (r *Route53) URL() string { return r.server.URL }

// PutRecordSet creates or replaces a record set as another user of the API would.
func (r *Route53) PutRecordSet(set RecordSet) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.sets[set.key()] = set
}

// Records returns all records as "TYPE name value", sorted.
func (r *Route53) Records() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := []string{}

	for _, set := range r.sets {
		for _, record := range set.Records {
			out = append(out, set.Type+" "+set.Name+" "+record.Value)
		}
	}

	slices.Sort(out)

	return out
}

func (s RecordSet) key() string { return strings.ToLower(s.Name) + " " + s.Type }

func (r *Route53) serveHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if !strings.Contains(request.Header.Get("Authorization"), "Credential="+Route53Key+"/") {
		writeXMLError(w, http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid.")

		return
	}

	path := strings.TrimSuffix(strings.TrimPrefix(request.URL.Path, "/2013-04-01/"), "/")
	zone, isSets := strings.CutSuffix(strings.TrimPrefix(path, "hostedzone/"), "/rrset")

	switch {
	case request.Method == http.MethodGet && path == "hostedzonesbyname":
		r.listZonesByName(w, request.URL.Query())
	case isSets && !slices.ContainsFunc(r.zones, func(name string) bool { return hostedZoneID(name) == zone }):
		writeXMLError(w, http.StatusNotFound, "NoSuchHostedZone", "No hosted zone found with ID: "+zone)
	case isSets && request.Method == http.MethodGet:
		r.listRecordSets(w, zone, request.URL.Query())
	case isSets && request.Method == http.MethodPost:
		r.changeRecordSets(w, request)
	default:
		r.t.Errorf("the Route 53 simulator does not support %s %s", request.Method, request.URL.Path)
		writeXMLError(w, http.StatusNotImplemented, "NotImplemented", "unknown call")
	}
}

func writeXMLError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<ErrorResponse xmlns=%q><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error>`+
		`<RequestId>1</RequestId></ErrorResponse>`, route53Namespace, code, message)
}

func writeXML(w http.ResponseWriter, name, body string) {
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<?xml version="1.0"?><%s xmlns=%q>%s</%s>`, name, route53Namespace, body, name)
}

func hostedZoneID(name string) string {
	return "Z" + strings.ToUpper(strings.ReplaceAll(name, ".", ""))
}

// listZonesByName returns the zone with the name in the query, or an empty list.
func (r *Route53) listZonesByName(w http.ResponseWriter, query url.Values) {
	var b strings.Builder

	for _, name := range r.zones {
		if name+"." == query.Get("dnsname") {
			fmt.Fprintf(&b, "<HostedZone><Id>/hostedzone/%s</Id><Name>%s.</Name><CallerReference>t</CallerReference>"+
				"<Config><PrivateZone>false</PrivateZone></Config></HostedZone>", hostedZoneID(name), name)
		}
	}

	writeXML(w, "ListHostedZonesByNameResponse", "<HostedZones>"+b.String()+
		"</HostedZones><IsTruncated>false</IsTruncated><MaxItems>1</MaxItems>")
}

func (r *Route53) listRecordSets(w http.ResponseWriter, zone string, query url.Values) {
	var keys []string

	for key, set := range r.sets {
		if hostedZoneID(r.zoneOf(set.Name)) == zone && key >= query.Get("name")+" "+query.Get("type") {
			keys = append(keys, key)
		}
	}

	slices.Sort(keys)

	var b strings.Builder

	b.WriteString("<ResourceRecordSets>")

	for _, key := range keys[:min(len(keys), r.pageSize)] {
		raw, err := xml.Marshal(struct {
			XMLName xml.Name `xml:"ResourceRecordSet"`
			RecordSet
		}{RecordSet: r.sets[key]})
		if err != nil {
			r.t.Error(err)
		}

		b.Write(raw)
	}

	b.WriteString("</ResourceRecordSets>")

	if len(keys) > r.pageSize {
		next := r.sets[keys[r.pageSize]]
		fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextRecordName>%s</NextRecordName><NextRecordType>%s</NextRecordType>",
			next.Name, next.Type)
	} else {
		b.WriteString("<IsTruncated>false</IsTruncated>")
	}

	writeXML(w, "ListResourceRecordSetsResponse", b.String()+"<MaxItems>1000</MaxItems>")
}

// zoneOf returns the longest zone that contains a name, "" if there is none.
func (r *Route53) zoneOf(name string) string {
	found := ""

	for _, zone := range r.zones {
		if (name == zone+"." || strings.HasSuffix(name, "."+zone+".")) && len(zone) > len(found) {
			found = zone
		}
	}

	return found
}

// changeRecordSets applies all changes of a batch, or none if one of them is invalid.
func (r *Route53) changeRecordSets(w http.ResponseWriter, request *http.Request) {
	var batch struct {
		Changes []struct {
			Action string    `xml:"Action"`
			Set    RecordSet `xml:"ResourceRecordSet"`
		} `xml:"ChangeBatch>Changes>Change"`
	}
	if err := xml.NewDecoder(request.Body).Decode(&batch); err != nil || len(batch.Changes) == 0 {
		writeXMLError(w, http.StatusBadRequest, "InvalidInput", "the batch cannot be read")

		return
	}

	after := maps.Clone(r.sets)

	for _, change := range batch.Changes {
		existing, known := after[change.Set.key()]
		invalid := len(change.Set.Records) == 0 || change.Set.TTL <= 0 || r.zoneOf(change.Set.Name) == ""

		switch {
		case change.Action == "UPSERT" && !invalid:
			after[change.Set.key()] = change.Set
		case change.Action == "DELETE" && known && existing.TTL == change.Set.TTL &&
			haveSameValues(existing.Records, change.Set.Records):
			delete(after, change.Set.key())
		default:
			writeXMLError(w, http.StatusBadRequest, "InvalidChangeBatch",
				fmt.Sprintf("Tried to %s resource record set %s but it was not found or the values do not match",
					change.Action, change.Set.Name))

			return
		}
	}

	r.sets = after

	writeXML(w, "ChangeResourceRecordSetsResponse", "<ChangeInfo><Id>/change/C1</Id><Status>PENDING</Status>"+
		"<SubmittedAt>2026-01-01T00:00:00Z</SubmittedAt></ChangeInfo>")
}

func haveSameValues(a, b []RecordValue) bool {
	order := func(x, y RecordValue) int { return strings.Compare(x.Value, y.Value) }

	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}
