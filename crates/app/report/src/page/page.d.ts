/** What the page reads of `laggard.verdict/1`. */
interface Verdict {
  job: { exposed_s: number; analysed_steps: number };
  stages: { name: string; advance_s: number }[];
  incidents: Incident[];
}

interface Incident {
  severity: string;
  subject: { stage: string | null; ranks: number[] };
}

/** The pictures' data, as `Picture` in picture.rs writes them. Columns are steps, or several. */
interface Series {
  steps: number[];
  first_step: number[];
  last_step: number[];
  incidents: (Span | null)[];
  stages: { paint: string; step_advance_us: number[]; lag?: string }[];
  ranks: number[];
  absences: (Span & { row: number })[];
  lag_code: { digits: string; floor_s: number; decades: number; codes: number };
}

interface Span {
  first_column: number;
  last_column: number;
}

/** Where a pointer is in a plot. */
interface Place {
  column: number;
  row: number;
}

/** A picture that pointer and keys move over. */
interface Plot {
  host: HTMLElement;
  at?: Place | null;
  draw(): void;
  /** Of a point in the plot's own pixels; `null` beside the picture. */
  locate(x: number, y: number): Place | null;
  rows(): number;
  centre(at: Place): [number, number];
  point(at: Place | null, own?: boolean): void;
  tell(at: Place): Node[];
}

/** A layer of the picture of time. */
interface Layer {
  paint: string;
  name: string;
  us: number[];
  stages: number;
}

/** Where a picture's axes enclose it, in pixels. */
interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Columns that are drawn as one: the first, the one behind the last, the left and the right edge. */
type Bin = [number, number, number, number];

/** Attributes of an element of SVG. */
type Attributes = Record<string, string | number>;

/** A job in the list of a collector. */
interface ListedJob {
  id: string;
  state: string;
  headline?: string | null;
  ranks: number;
  hosts: number;
  steps: number;
  incidents: number;
  open_incidents: number;
  lost_records: number;
  silent_hosts: string[];
  exposed_s: number;
  last_seen_s: number;
}
