// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
)

//go:embed assets
var assets embed.FS

// Config is what the pages need.
type Config struct {
	View  *live.View
	Clock clock.PassiveClock
	// Hosts are the names, beside this machine's, that the pages may be called by.
	Hosts []string
}

// handler renders the pages.
type handler struct {
	Config

	templates *template.Template
}

// page is what every template gets.
type page struct {
	// Title of the page, and Area of the navigation that it belongs to.
	Title, Area string
	Server      string
	Namespace   string
	Now         time.Time
	// Missing says which of the page's kinds can't be shown, and why.
	Missing []string
	// Live says that the page is renewed by itself.
	Live bool
	Data any
}

// errNotFound is the error of what there is not.
var errNotFound = errors.New("there is no such thing, or it is gone")

// NewHandler makes the pages.
func NewHandler(cfg Config) (http.Handler, error) {
	h := &handler{Config: cfg}

	templates, err := template.New("").Funcs(h.funcs()).ParseFS(assets, "assets/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse pages: %w", err)
	}

	h.templates = templates
	mux := http.NewServeMux()

	for pattern, render := range map[string]func(*http.Request) (*page, error){
		"GET /{$}":                         h.overview,
		"GET /jobs":                        h.jobs,
		"GET /jobs/{namespace}/{name}":     h.job,
		"GET /pools":                       h.pools,
		"GET /pools/{namespace}/{name}":    h.pool,
		"GET /machines":                    h.machines,
		"GET /machines/{namespace}/{name}": h.machine,
		"GET /clusters":                    h.clusters,
		"GET /clusters/{name}":             h.cluster,
		"GET /hosts":                       h.hosts,
		"GET /bridges":                     h.bridges,
	} {
		mux.Handle(pattern, h.serve(render))
	}

	static, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, fmt.Errorf("read assets: %w", err)
	}

	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, r, static, name)
		})
	}

	mux.Handle("/", h.serve(func(*http.Request) (*page, error) { return nil, errNotFound }))

	return guard(cfg.Hosts, mux), nil
}

// serve renders one page.
func (h *handler) serve(render func(*http.Request) (*page, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK

		shown, err := render(r)

		switch {
		case errors.Is(err, errNotFound) || apierrors.IsNotFound(err):
			status, shown = http.StatusNotFound, &page{Title: "Not found", Data: errNotFound.Error()}
		case err != nil:
			status, shown = http.StatusBadGateway, &page{Title: "Not readable", Data: err.Error()}
		}

		name := shown.Area
		if status != http.StatusOK {
			name, shown.Area = "error", ""
		}

		shown.Server, shown.Namespace, shown.Now = h.View.Server, h.View.Namespace, h.Clock.Now()

		var out bytes.Buffer
		if err := h.templates.ExecuteTemplate(&out, name+".html", shown); err != nil {
			http.Error(w, fmt.Sprintf("render page: %v", err), http.StatusInternalServerError)

			return
		}

		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(out.Bytes()) // a reader that went away needs no answer
	})
}

// missing says which of the kinds can't be shown.
func (h *handler) missing(kinds ...string) []string {
	var out []string

	for _, kind := range kinds {
		if why, ok := h.View.Missing[kind]; ok {
			out = append(out, why)
		}
	}

	return out
}
