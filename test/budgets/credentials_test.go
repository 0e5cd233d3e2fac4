// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

// moreKinds returns the kinds of texts of Secrets, machines and servers.
func moreKinds() map[string]inputKind {
	const object = 1 << 20

	certificates := map[string]func(int) string{"certificates": manyCertificates, "extensions": manyExtensions}

	return map[string]inputKind{
		"pull secret": {read: readPullSecret, size: object, own: map[string]func(int) string{"registries": manyRegistries}},
		"authorized_keys": {read: readSSHKeys, size: object, own: map[string]func(int) string{
			"keys": func(size int) string { return fill(size, "", publicKey+"\n", "") },
			"options": func(size int) string {
				return fill(size, "", "a,", "a "+publicKey)
			},
		}},
		"CA bundle": {read: readBundle, size: object, own: certificates},
		"user data of HyperShift": {read: readUserDataOfHyperShift, size: object, own: map[string]func(int) string{
			"sources":     func(size int) string { return fill(size, `{"ignition":{"config":{"merge":[`, "{},", "{}]}}}") },
			"authorities": manyAuthorities,
		}},
		"ignition of HyperShift": {read: readWorker, size: 2 * object, own: map[string]func(int) string{
			"one file": func(size int) string {
				return fill(size, worker[:len(worker)-2]+`,{"path":"/a","contents":{"source":"data:,`, "a", `"}}]}}`)
			},
			"a configuration of many": func(size int) string {
				return fill(size, workerBegin+"{%22spec%22:{},%22a%22:[", "{%22a%22:1},", "1]}"+workerEnd)
			},
			"a long configuration": func(size int) string {
				return fill(size, workerBegin+"{%22spec%22:{},%22a%22:%22", "%3C", "%22}"+workerEnd)
			},
			"a packed configuration": func(size int) string {
				return packWorker(fill(size, `{"spec":{},"a":"`, "<", `"}`))
			},
			"a packed configuration that grows": func(size int) string {
				return packWorker(fill(size, `{"spec":{},"a":"`, "\xff", `"}`))
			},
			"a packed configuration of separators": func(size int) string {
				return packWorker(fill(size, `{"spec":{},"a":"`, "\u2028", `"}`))
			},
		}},
		"report of a machine": {read: readReport, size: object, own: map[string]func(int) string{
			"log":         func(size int) string { return fill(size, `{"phase":"Finished","log":"`, `\u0041`, `"}`) },
			"log of many": func(size int) string { return fill(size, `{"phase":"Finished","log":[`, `{},`, `1]}`) },
			"message":     func(size int) string { return fill(size, `{"phase":"Finished","message":"`, `\u0041`, `"}`) },
		}},
	}
}

func readPullSecret(text string) error {
	_, err := credentials.ParseDockerConfig([]byte(text))

	return err
}

func readSSHKeys(text string) error { return credentials.CheckSSHKeys([]byte(text)) }

func readBundle(text string) error {
	_, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{CABundle: []byte(text)}, nil, nil)

	return err
}

// readUserDataOfHyperShift parses user data and its authorities, without contacting a server.
func readUserDataOfHyperShift(text string) error {
	source, err := ignition.ParseUserData([]byte(text))
	if err != nil {
		return err
	}

	_, err = bounds.ParseCABundle(source.CABundle, nil)

	return err
}

func readWorker(text string) error {
	_, err := ignition.BuildTemplate(ignition.Inputs{Worker: []byte(text), Flavor: map[string]any{}})

	return err
}

func readReport(text string) error {
	scheme := k8sruntime.NewScheme()
	_ = v1alpha1.AddToScheme(scheme)

	handler := &report.Handler{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clock.RealClock{}}

	req := httptest.NewRequest(http.MethodPost, "/machines/ns/m/u/report", strings.NewReader(text))
	for key, value := range map[string]string{"namespace": "ns", "name": "m", "uid": "u"} {
		req.SetPathValue(key, value)
	}

	req.Header.Set("Authorization", "Bearer "+vmspec.ReportToken(nil, "ns", "m", "u"))

	response := httptest.NewRecorder()
	handler.ServeHTTP(response, req)

	switch response.Code {
	case http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", bounds.ErrTooLarge, response.Body)
	case http.StatusGone, http.StatusBadRequest: // the body was read
		return nil
	default:
		return fmt.Errorf("%d: %s", response.Code, response.Body)
	}
}

// packWorker returns an Ignition configuration with a machine's configuration, compressed.
func packWorker(configuration string) string {
	var packed bytes.Buffer

	zip := gzip.NewWriter(&packed)
	_, _ = zip.Write([]byte(configuration)) // writes to memory do not fail
	_ = zip.Close()

	begin := strings.Replace(workerBegin, `"source":"data:,`, `"compression":"gzip","source":"data:;base64,`, 1)

	return begin + base64.StdEncoding.EncodeToString(packed.Bytes()) + workerEnd
}

func manyRegistries(size int) string {
	var b strings.Builder
	b.WriteString(`{"auths":{"k":{}`)

	for i := 0; b.Len() < size-2; i++ {
		b.WriteString(`,"` + newWord(i) + `":{}`)
	}

	return b.String() + "}}"
}

// newCertificate returns a certificate with this number of extensions, in PEM.
func newCertificate(extensions int) string {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	for i := range extensions {
		template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 1, i}})
	}

	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

	der, err := x509.CreateCertificate(bytes.NewReader(make([]byte, 64)), template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}

	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func manyCertificates(size int) string { return fill(size, "", newCertificate(0), "") }

func manyExtensions(size int) string {
	const one = 15 // characters of an extension in PEM

	return newCertificate(size / one)
}

func manyAuthorities(size int) string {
	return fill(size, `{"ignition":{"config":{"merge":[{"source":"https://a"}]},"security":{"tls":{"certificateAuthorities":[`,
		`{"source":"data:,`+url.PathEscape(newCertificate(0))+`"},`, `{"source":"data:,`+url.PathEscape(newCertificate(0))+`"}]}}}}`)
}

// TestLimitsFitRealInput checks that real texts are far below each limit, and that larger texts are rejected.
func TestLimitsFitRealInput(t *testing.T) {
	t.Parallel()

	one, all := newCertificate(0), moreKinds()

	for name, tt := range map[string]struct{ kind, real, refused string }{
		"registries": {
			"pull secret", `{"auths":{` + strings.Repeat(`"a":{"auth":"dTpw","email":"a"},`, 100) + `"b":{"auth":"dTpw"}}}`, manyRegistries(60 << 10),
		},
		"lines of keys":         {"authorized_keys", strings.Repeat(publicKey+"\n", 200), strings.Repeat("\n", 2001) + publicKey},
		"bytes of keys":         {"authorized_keys", publicKey, publicKey + strings.Repeat(" ", 256<<10)},
		"certificates":          {"CA bundle", strings.Repeat(one, 150), strings.Repeat(one, 501)},
		"bytes of certificates": {"CA bundle", one, one + strings.Repeat("\n", 256<<10)},
		"user data":             {"user data of HyperShift", manyAuthorities(8 << 10), `{"a":[` + strings.Repeat("1,", 1000) + `1]}`},
		"authorities":           {"user data of HyperShift", manyAuthorities(20 << 10), manyAuthorities(400 << 10)},
		"values of ignition":    {"ignition of HyperShift", worker, strings.TrimSuffix(worker, "}") + `,"a":[` + strings.Repeat("1,", 10_000) + `1]}`},
		"bytes of ignition":     {"ignition of HyperShift", worker, worker + strings.Repeat(" ", 1<<20)},
		"values of a machine's configuration": {
			"ignition of HyperShift", worker, workerBegin + "{%22spec%22:{},%22a%22:[" + strings.Repeat("1,", 10_000) + "1]}" + workerEnd,
		},
		"a machine's configuration that grows": {
			"ignition of HyperShift", packWorker(`{"spec":{}}`), packWorker(`{"spec":{},"a":"` + strings.Repeat("\xff", 600<<10) + `"}`),
		},
		"log of a report": {
			"report of a machine", `{"phase":"Finished","log":"` + strings.Repeat("a", 64<<10) + `"}`, `{"phase":"Finished","log":"` + strings.Repeat("a", 512<<10) + `"}`,
		},
		"message": {"report of a machine", `{"phase":"Finished","message":"a"}`, `{"phase":"Finished","message":"` + strings.Repeat("a", 9<<10) + `"}`},
	} {
		if err := all[tt.kind].read(tt.real); err != nil {
			t.Errorf("%s: real text: error %.200v", name, err)
		}

		if err := all[tt.kind].read(tt.refused); !errors.Is(err, bounds.ErrTooLarge) {
			t.Errorf("%s: error %.200v, want ErrTooLarge", name, err)
		}
	}
}
