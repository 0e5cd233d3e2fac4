// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"io"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

const (
	outputRBAC = "rbac"
	// namePrefix begins the names of accounts and roles.
	namePrefix = "hyperfleet-adapter"
)

// access is what is printed for one cluster.
type access struct {
	// Who is the adapter, and Where its cluster, for people.
	Who, Where      string
	Name, Namespace string
	Rules           []task.Rule
}

// manifests is the text of an access.
const manifests = `# What {{ .Who }} may do on its {{ .Where }}: what its task file needs, and no more.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .Name }}
  namespace: {{ .Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .Name }}
rules:
{{- range .Rules }}
- apiGroups: [{{ if .Group }}{{ .Group }}{{ else }}""{{ end }}]
  resources: [{{ .Resource }}]
  verbs: [{{ list .Verbs }}]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .Name }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .Name }}
subjects:
- kind: ServiceAccount
  name: {{ .Name }}
  namespace: {{ .Namespace }}
`

// printRBAC prints what the files need: on the cluster, and on the hub.
func printRBAC(cmd *cobra.Command, files []string, namespace string) error {
	deployment, err := deploymentOf(cmd, task.Deployment(true))

	out := &report{Files: files, Problems: strictyaml.Problems{}, Warnings: strictyaml.Problems{}}
	out.add("configuration", err)

	need := map[string][]task.Rule{}

	for _, file := range files {
		loaded, err := task.LoadFile(file, deployment)
		out.add(file, err)

		for _, name := range []string{transport.Kubernetes, transport.Maestro} {
			if err != nil {
				break
			}

			rules, err := loaded.Access(name)
			out.add(file, err)

			need[name] = append(need[name], rules...)
		}
	}

	if len(out.Problems) > 0 {
		if err := out.print(cmd.ErrOrStderr(), outputText); err != nil {
			return err
		}

		return cli.Failed()
	}

	who, name := "the adapter", namePrefix
	if deployment != nil {
		who, name = "the adapter "+deployment.Adapter.Name, namePrefix+"-"+deployment.Adapter.Name
	}

	return printAll(cmd.OutOrStdout(), []access{
		{who, "cluster", name, namespace, task.MergeRules(need[transport.Kubernetes])},
		{who, "hub", name, namespace, task.MergeRules(need[transport.Maestro])},
	})
}

// printAll prints those that are not empty.
func printAll(w io.Writer, all []access) error {
	text, err := template.New("rbac").Funcs(template.FuncMap{
		"list": func(words []string) string { return strings.Join(words, ", ") },
	}).Parse(manifests)
	if err != nil {
		return fmt.Errorf("read template: %w", err)
	}

	separator := ""

	for _, one := range all {
		if len(one.Rules) == 0 {
			continue
		}

		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}

		if err := text.Execute(w, one); err != nil {
			return err
		}

		separator = "---\n"
	}

	return nil
}
