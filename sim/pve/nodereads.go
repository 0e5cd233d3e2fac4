// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"syscall"
)

// nodeReadRoutes returns the calls that describe a node: its names, its time, its certificates, and what its QEMU can
// do.
func nodeReadRoutes() []route {
	node := "/nodes/{node}"
	auditNode, audit := requireAll(node, "Sys.Audit"), requireAll("/", "Sys.Audit")
	get := func(path string, perm permCheck, params schema, h handler) route {
		return newRoute(http.MethodGet, path, ClassOther, perm, params, h)
	}
	return []route{
		get(node+"/dns", auditNode, nil, newFixed(map[string]any{"dns1": "192.0.2.53"})),
		get(node+"/hosts", audit, nil, getHosts), get(node+"/time", auditNode, nil, getTime),
		get(node+"/certificates/info", nil, nil, listCertificates),
		get(node+"/capabilities/qemu/cpu", nil, nil, listCPUModels),
		get(node+"/capabilities/qemu/machines", nil, nil, listMachines),
		get("/cluster/qemu/cpu-flags", checkCPUFlagsPermission, schema{"accel": {}, "arch": {}}, listCPUFlags),
		get(node+"/query-url-metadata", checkNetworkPermission,
			schema{"url": {required: true, check: checkURL}, "verify-certificates": {kind: kBool}}, queryURL),
		get("/access/tfa", nil, nil, listNothing), get("/access/tfa/{userid}", nil, nil, listNothing),
	}
}

// exampleDomain is the domain of the nodes.
const exampleDomain = "example.test"

func getHosts(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("127.0.0.1 localhost\n%s %s.%s %s\n", s.nodeAddress(c.node), c.node, exampleDomain, c.node)
	sum := sha1.Sum([]byte(text)) // #nosec G401 -- the digest algorithm of Proxmox VE
	return map[string]any{"data": text, "digest": hex.EncodeToString(sum[:])}, nil
}

func getTime(s *Server, _ *call) (any, error) {
	if s.model.isMissing(MissingTimedate) {
		return nil, dief("command 'timedatectl show '--property=Timezone' --value' failed: exit code 1")
	}
	now := s.clk.Now().Unix()
	return map[string]any{"time": now, "localtime": now, "timezone": "UTC"}, nil
}

// listCertificates describes the CA and the certificate of a node. The simulator has one certificate for all nodes.
func listCertificates(s *Server, c *call) (any, error) {
	s.mu.Lock()
	address := s.nodeAddress(c.node)
	s.mu.Unlock()
	block, _ := pem.Decode(s.certs.Load().caPEM)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, dief("parse CA: %s", err)
	}
	leaf, err := x509.ParseCertificate(s.certs.Load().server.Certificate[0])
	if err != nil {
		return nil, dief("parse certificate: %s", err)
	}
	issuer := fmt.Sprintf("/CN=%s/OU=%s/O=%s", ca.Subject.CommonName, strings.Join(ca.Subject.OrganizationalUnit, "/OU="),
		strings.Join(ca.Subject.Organization, "/O="))
	row := func(file, subject string, cert *x509.Certificate, names []string) map[string]any {
		return map[string]any{
			"filename": file, "fingerprint": computeFingerprint(cert.Raw), "issuer": issuer, "subject": subject, "san": names,
			"notbefore": cert.NotBefore.Unix(), "notafter": cert.NotAfter.Unix(), "public-key-type": "id-ecPublicKey",
			"public-key-bits": 256, "pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})),
		}
	}
	return []map[string]any{
		row("pve-root-ca.pem", issuer, ca, []string{}),
		row("pve-ssl.pem", "/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN="+c.node, leaf,
			[]string{"127.0.0.1", "0000:0000:0000:0000:0000:0000:0000:0001", "localhost", address, c.node}),
	}, nil
}

// listCPUModels lists the CPU types with the vendors of the processors that they are made after.
func listCPUModels(*Server, *call) (any, error) {
	var out []map[string]any
	for model := range strings.FieldsSeq(cpuModels) {
		vendor := "GenuineIntel"
		for _, v := range []struct{ vendor, prefixes string }{
			{"AuthenticAMD", "EPYC Opteron athlon phenom"}, {"default", "host kvm max qemu x86-64"},
		} {
			if slices.ContainsFunc(strings.Fields(v.prefixes), func(p string) bool { return strings.HasPrefix(model, p) }) {
				vendor = v.vendor
			}
		}
		row := map[string]any{"name": model, "vendor": vendor, "custom": 0}
		if strings.HasPrefix(model, "x86-64-") { // a level of the architecture, and no processor
			row["abstract"] = 1
		}
		out = append(out, row)
	}
	return out, nil
}

func listMachines(s *Server, _ *call) (any, error) {
	if s.model.isMissing(MissingQEMUTables) {
		return nil, dief("could not load supported machine versions - can't open '/usr/share/kvm/machine-versions-x86_64.json' - " +
			"No such file or directory\n")
	}
	var out []map[string]any
	for _, version := range []string{"10.1", "10.0", "9.2", "9.0", "8.1"} {
		out = append(out, map[string]any{"id": "pc-i440fx-" + version, "type": "i440fx", "version": version},
			map[string]any{"id": "pc-q35-" + version, "type": "q35", "version": version})
	}
	return out, nil
}

func checkCPUFlagsPermission(s *Server, c *call) error {
	if s.require(c.auth, "/nodes", "Sys.Audit") != nil {
		return newPermissionError()
	}
	return nil
}

func listCPUFlags(s *Server, _ *call) (any, error) {
	if s.model.isMissing(MissingQEMUTables) {
		return nil, dief("Cannot query understood QEMU CPU flags for architecture: x86_64 (file not found)")
	}
	var out []map[string]any
	for flag := range strings.SplitSeq(cpuFlags, ", ") {
		out = append(out, map[string]any{"name": flag})
	}
	return out, nil
}

func checkURL(v string) error {
	if u, err := url.Parse(v); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("value does not match the regex pattern")
	}
	return nil
}

// queryURL returns the name, the size and the type of a file that could be downloaded.
func queryURL(_ *Server, c *call) (any, error) {
	response, err := openURL(c.ctx, http.MethodHead, c.param("url"))
	if err != nil {
		u, _ := url.Parse(c.param("url")) // checkURL has parsed it
		return nil, dief("invalid server response: '500 Can't connect to %s (%s)'", u.Host, describeDialError(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, dief("invalid server response: '%s'", response.Status)
	}
	return map[string]any{
		"filename": path.Base(response.Request.URL.Path), "size": max(0, response.ContentLength),
		"mimetype": response.Header.Get("Content-Type"),
	}, nil
}

// openURL sends a request to the server of a file.
func openURL(ctx context.Context, method, address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	res, err := http.DefaultClient.Do(req) // #nosec G704 -- the API downloads the caller's URL
	if err != nil {
		return nil, fmt.Errorf("send request: %w", err)
	}
	return res, nil
}

// describeDialError returns the text of the system for a connection that failed, with a capital letter as in C.
func describeDialError(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text := errno.Error()
		return strings.ToUpper(text[:1]) + text[1:]
	}
	return err.Error()
}
