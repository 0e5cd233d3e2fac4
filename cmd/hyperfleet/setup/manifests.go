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
)

// The files that are written.
const (
	fleetFile   = "fleet.yaml"
	secretsFile = "secrets.yaml"
)

//go:embed *.tmpl
var templates embed.FS

// answers are all that the manifests are made of.
type answers struct {
	Namespace, OperatorNamespace  string
	Cluster, Endpoint             string
	Fingerprint                   string
	CABundle                      []byte
	TokenID, TokenSecret          string
	Template, Memory              string
	CPU                           int
	GitHubURL                     string
	Organization, Repository      string
	GitHubToken                   string
	AppID, InstallationID, AppKey string
	WebhookSecret                 string
	Labels                        []string
	MaxMachines                   int
}

// render gives the text of a file.
func (a *answers) render(name string) (string, error) {
	parsed, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"yaml": inline, "text": quoted, "flow": flow,
		// The two halves of a repository.
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
		return "", fmt.Errorf("read template of %s: %w", name, err)
	}

	var out bytes.Buffer
	if err := parsed.Execute(&out, a); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}

	return out.String(), nil
}

// inline is a value as YAML writes it on one line.
func inline(value string) (string, error) {
	if strings.ContainsAny(value, "\n,[]{}") || len(value) > 60 {
		return quoted(value)
	}

	out, err := yaml.Marshal(value)

	return strings.TrimSpace(string(out)), err
}

// quoted is a text in quotation marks, on one line.
func quoted(value string) (string, error) {
	out, err := json.Marshal(value)

	return string(out), err
}

// flow is a list on one line.
func flow(values []string) (string, error) {
	items := make([]string, 0, len(values))

	for _, value := range values {
		item, err := inline(value)
		if err != nil {
			return "", err
		}

		items = append(items, item)
	}

	return "[" + strings.Join(items, ", ") + "]", nil
}

// vacant says whether nothing would be written over.
func (o *options) vacant() error {
	for _, name := range []string{fleetFile, secretsFile} {
		if _, err := os.Lstat(filepath.Join(o.dir, name)); err == nil {
			return fmt.Errorf("%s is there already: remove it, or name another folder by --dir", filepath.Join(o.dir, name))
		}
	}

	return nil
}

// write writes both files into a folder.
func (a *answers) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make folder %s: %w", dir, err)
	}

	for _, name := range []string{fleetFile, secretsFile} {
		text, err := a.render(name)
		if err != nil {
			return err
		}

		// Nobody else reads a Secret.
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}

	return nil
}
