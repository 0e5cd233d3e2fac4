// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"bytes"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Names of the files that the command writes.
const (
	fleetFile   = "fleet.yaml"
	secretsFile = "secrets.yaml"
)

//go:embed *.tmpl
var templates embed.FS

// answers has the values for the manifests. The templates use the field names.
type answers struct {
	Namespace, OperatorNamespace string
	Cluster, Endpoint            string
	Fingerprint                  string
	CABundle                     []byte
	TokenID, TokenSecret         string
	// The following are for libvirt.
	ClientCert, ClientKey, SSHKey string
	SSHHostKey, Pool, Bridge      string
	Template, Memory, OS          string
	CPU                           int
	GitHubURL                     string
	Organization, Repository      string
	GitHubToken                   string
	AppID, InstallationID, AppKey string
	WebhookSecret                 string
	Labels                        []string
	MaxMachines, WarmIdle         int
	RunnerGroup, ScaleSet         string
}

// isWindows reports whether the template has Windows.
func (a *answers) isWindows() bool { return a.OS == v1alpha1.OSWindows }

// render returns the text of one of the files.
func (a *answers) render(name string) (string, error) {
	parsed, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"yaml": inlineYAML, "text": quoteYAML, "flow": inlineList,
		"isLibvirt": a.isLibvirt, "isTLS": a.isTLS, "isSSH": a.isSSH, "isWindows": a.isWindows,
		// owner and name return the two parts of a repository.
		"owner":  func(repository string) string { owner, _, _ := strings.Cut(repository, "/"); return owner },
		"name":   func(repository string) string { _, name, _ := strings.Cut(repository, "/"); return name },
		"base64": base64.StdEncoding.EncodeToString,
		"host": func(text string) string {
			parsed, err := url.Parse(text)
			if err != nil {
				return text
			}

			return parsed.Host
		},
	}).ParseFS(templates, name+".tmpl")
	if err != nil {
		return "", fmt.Errorf("parse template of %s: %w", name, err)
	}

	var out bytes.Buffer
	if err := parsed.Execute(&out, a); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}

	return out.String(), nil
}

// inlineYAML returns a value as YAML on one line. It quotes long values and values that YAML could break or
// misread.
func inlineYAML(value string) (string, error) {
	if strings.ContainsAny(value, "\n,[]{}") || len(value) > 60 {
		return quoteYAML(value)
	}

	out, err := yaml.Marshal(value)

	return strings.TrimSpace(string(out)), err
}

// quoteYAML returns a value as a double-quoted string on one line.
func quoteYAML(value string) (string, error) {
	out, err := json.Marshal(value)

	return string(out), err
}

// inlineList returns a list as YAML on one line.
func inlineList(values []string) (string, error) {
	items := make([]string, 0, len(values))

	for _, value := range values {
		item, err := inlineYAML(value)
		if err != nil {
			return "", err
		}

		items = append(items, item)
	}

	return "[" + strings.Join(items, ", ") + "]", nil
}

// checkNoFiles returns an error if one of the files already exists, so that the command overwrites nothing.
func (o *options) checkNoFiles() error {
	for _, name := range []string{fleetFile, secretsFile} {
		if _, err := os.Lstat(filepath.Join(o.dir, name)); err == nil {
			return fmt.Errorf("%s already exists: delete the file, or use another folder with --dir", filepath.Join(o.dir, name))
		}
	}

	return nil
}

// writeFiles writes both files to a folder, which it creates if necessary. Only the user can read the files.
func (a *answers) writeFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("create folder %s: %w", dir, err)
	}

	for _, name := range []string{fleetFile, secretsFile} {
		text, err := a.render(name)
		if err != nil {
			return err
		}

		// Only the user may read Secrets.
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}

	return nil
}
