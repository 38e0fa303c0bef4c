// The types that the modules of the console share. tsc reads this file; no browser does, so it is not among the static files.

/** An object of JSON. */
type Plain = Record<string, unknown>;

interface AskOptions {
  method?: string;
  query?: Record<string, string | number | null | undefined>;
  body?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** Calls a function with each event. The caller connects again, with the id of its last event. */
type StreamReader = (
  path: string,
  onEvent: (event: StreamEvent) => void,
  options: { signal: AbortSignal; lastEventId?: string },
) => Promise<void>;

interface ConsoleSession {
  signed_in: boolean;
  needs_token: boolean;
  mode: string;
  records: boolean;
  evaluations?: boolean;
  name: string;
  expires_at: number | null;
}

interface StreamEvent {
  id: string;
  event: string;
  data: unknown;
}

/** What a page gets. `parts` is the address after its name, decoded; `query` what stands after `?` in the hash. */
interface PageContext {
  root: HTMLElement;
  parts: string[];
  /** The path before the parts, also that of its requests. */
  base: string;
  query: URLSearchParams;
  session: ConsoleSession;
}

/** A page fills `root`. `signal` aborts when it is left: give it to listeners, requests and streams. */
type Page = (context: PageContext, signal: AbortSignal) => Promise<void> | void;

/** An event of `mcpenv dev`: `reloaded`, `loading` or `failed`. */
interface CodeEvent {
  server: string;
  generation: number;
  changed: string[];
  took_s: number | null;
  file: string | null;
  line: number | null;
  message: string;
  source: string | null;
  traceback: string;
}

/** Shows the fault of new code in `place`, and calls `onReload` when the server runs other code than before. */
type CodeFollower = (place: HTMLElement, onReload: () => void, signal: AbortSignal) => Promise<void>;

/** A page of the navigation: `NAME.js` exports it as `page`. */
interface Entry {
  name: string;
  title: string;
  shown: (session: ConsoleSession) => boolean;
}

/** What can be put into an element: a text stays a text. */
type Child = Node | string | number | null | undefined | false;

type Tag = keyof HTMLElementTagNameMap;

/** A tag with classes as in CSS: `p.error`. */
type Selector = Tag | `${Tag}.${string}`;

/** The element of a selector. */
type Selected<S extends Selector> = S extends Tag ? HTMLElementTagNameMap[S]
  : S extends `${infer T extends Tag}.${string}` ? HTMLElementTagNameMap[T] : never;

/** Attributes and listeners of an element. */
interface Properties {
  onsubmit?: (event: Event) => unknown;
  oninput?: (event: Event) => unknown;
  onclick?: (event: Event) => unknown;
  [name: string]: unknown;
}

/** Makes a place that scrolls. `name` is for screen readers. */
type RegionMaker = <S extends Selector>(selector: S, name: string, ...children: Child[]) => Selected<S>;

/** Puts an input, which has an id, and what follows it under a label. */
type LabelMaker = (label: string, input: HTMLElement, ...children: Child[]) => HTMLElement;

type FormMaker = <S extends Selector>(selector: S, properties: Properties, onSubmit: () => unknown, ...children: Child[]) => Selected<S>;

/** Makes `details`. `make` is called when they are opened first. */
type FoldMaker = (selector: "details" | "details.card", summary: HTMLElement, make: () => Child[]) => HTMLDetailsElement;

type ButtonMaker = (text: string, onclick: (event: Event) => unknown, properties?: Properties) => HTMLButtonElement;

/** Puts children into a card or under a heading. `name` is the heading, or for screen readers. */
type CardMaker = (name: string, ...children: Child[]) => HTMLElement;

type AlertMaker = (properties?: Properties, ...children: Child[]) => HTMLElement;

/** Makes the form that finds text in the steps of a list. */
type FinderMaker = (list: import("./static/step.js").StepList, signal: AbortSignal) => HTMLElement;

/** Two steps that stand for each other: their indices (null: the episode has no such step), and how they differ, in words and by path. */
interface StepPair {
  at: (number | null)[];
  differs: boolean;
  text: string;
  found: Change[] | null;
}

/** The answer of `GET /records/alignment`. `first` is the index of the first pair that differs; null: none. */
interface AlignmentAnswer {
  pairs: StepPair[];
  reset: Change[] | null;
  end: Change[] | null;
  first: number | null;
  summary: string;
}

/** Makes a table. `name` is for screen readers, `style` a class of all columns but the first. */
type TableMaker = (name: string, heads: Child[], rows: Child[][], style?: string) => HTMLElement;

/** Makes an image or a sound of the type `declared` from base64 or an address; `otherwise` stands for unknown types. */
type MediaMaker = (
  declared: string | undefined,
  data: string | undefined,
  otherwise: HTMLElement,
  ref?: string,
) => HTMLElement;

/** Writes the body of a step. `blobs` is the path of the record's blobs, `earlier` the value that this step's is compared with. */
type StepWriter = (root: Element, step: Step, blobs: string, earlier?: Earlier) => void;

/** Makes the form that begins an episode. `schema` is that of the reset options. */
type SetupMaker = (
  metadata: { name: string; tasks: Record<string, number> | null },
  schema: Schema,
  onStart: (reset: Plain) => Promise<void>,
  signal: AbortSignal,
) => {
  element: HTMLElement;
  refuse: (message: string, errors?: { loc: unknown[]; msg: string }[]) => void;
};

/** A JSON Schema. */
interface Schema {
  properties?: Record<string, Schema>;
  required?: string[];
  allOf?: Schema[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  enum?: unknown[];
  [keyword: string]: any;
}

/** A tool as `list_tools` describes it. */
interface Tool {
  name: string;
  title?: string | null;
  description?: string;
  input_schema: Schema;
  meta?: Record<string, any> | null;
  /** True for an action of the environment's own, which is sent without a tool's name. */
  own?: boolean;
}

/** A part of a form. `read` throws a Problem if it holds no value of its schema; a draft leaves out such a value. `mark` returns false if the form has no such place. */
interface Field {
  element: HTMLElement;
  read: (draft?: boolean) => unknown;
  write: (value: unknown) => void;
  mark: (path: string[], message: string) => boolean;
  clear: () => void;
}

/** Makes the field of a resolved schema, with its label; references lead into `root`. */
type FieldMaker = (schema: Schema, name: string, root: Schema) => Field;

/** Makes the field of a schema that is not resolved yet. */
type AnyFieldMaker = (given: Schema | boolean | undefined, name: string, root: Schema) => Field;

/** Makes a list of fields. `text` stands on the button that adds one; `least` and `most` limit their number. */
type ListFieldMaker = (name: string, text: string, make: (index: number) => Field, least?: number, most?: number) =>
  Field & { fields: () => Field[] };

/** Puts a field into a frame. */
type GroupMaker = (name: string, schema: Schema, inside: Field) => Field;

/** Makes the field of an input. */
type ValueFieldMaker = (
  schema: Schema,
  name: string,
  input: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement,
  read: () => unknown,
  write: (value: unknown) => void,
) => Field;

/** Follows the references of a schema into `root`. It throws an Error if one leads nowhere or in a circle. */
type SchemaResolver = (schema: Schema | boolean | undefined, root: Schema) => Schema;

type MemberNamer = (member: Schema, union: Schema, root: Schema) => string;

type SchemaTest = (value: unknown, given: Schema | boolean | undefined, root: Schema) => boolean;

/** Makes the field of a single value. */
type InputMaker = (schema: Schema, name: string) => Field;

/** A content block of MCP, with `ref` (live) or `blob` (recorded) in place of large `data`. */
interface Block {
  type: string;
  text?: string;
  data?: string;
  mimeType?: string;
  ref?: string;
  blob?: string;
  name?: string;
  uri?: string;
  title?: string;
  description?: string;
  resource?: { uri?: string; mimeType?: string; text?: string; blob?: string };
}

/** The `data` of an observation frame. */
interface Observed {
  observation: Record<string, any>;
  reward: number | null;
  done: boolean;
  terminated?: boolean;
  truncated?: boolean;
  metadata?: Record<string, any>;
  info?: Record<string, any>;
}

/** The `data` of the answer to a frame of the visitor's session. */
type AnswerTo<T extends string> = T extends "reset" | "step" | "restore" | "end" ? Observed : any;

interface Call {
  name: string;
  arguments: Record<string, unknown>;
  own?: boolean;
  /** Who makes it, for the record; the person who plays if it is not there. */
  by?: string;
}

/** What a model says next, as `/sessions/ID/moves` answers. */
interface Move {
  text: string;
  calls: Call[];
  problem: string | null;
}

type CallMaker = (id: string, call: Call, holder?: string) => Promise<Observed>;

type Mover = (id: string, model: string, signal: AbortSignal) => Promise<Move>;

/** Lets a model call until it stops, `make` returns false, or it has made `most` calls. Returns why it has ended; empty if `make` has. */
type ModelPlayer = (
  id: string,
  model: string,
  most: number,
  signal: AbortSignal,
  make: (call: Call) => Promise<boolean>,
) => Promise<string>;

type Sayer = (place: HTMLElement, signal: AbortSignal, work: Promise<string>) => Promise<string | null>;

/** Does something with a model, and returns what to say of it. */
type ModelWork = (session: import("./static/socket.js").Session, signal: AbortSignal) => Promise<string>;

/** The page Play as the card of models needs it. `recorded`: the server keeps a record. */
interface Playing {
  session: import("./static/socket.js").Session | null;
  over: boolean;
  call: (call: Call) => Promise<boolean>;
  propose: (call: Call) => void;
  end: () => Promise<boolean>;
}

type ModelCard = (play: Playing, names: string[], recorded: boolean) => HTMLElement;

/** The card of a tool in Play. */
interface ToolCard {
  element: HTMLElement;
  /** Write values into the form, or a text as JSON. */
  write: (value: Plain, json?: string) => void;
  draft: () => Draft;
  /** Say whether the episode has ended, after which no tool can be called. */
  end: (ended: boolean) => void;
  refuse: (error: Failure) => void;
}

/** What is typed into a tool's form: its values, or its text while it is edited as JSON. */
interface Draft {
  value: Plain;
  json?: string;
}

/** What a tab keeps of its episode. */
interface Kept {
  /** The session's id. */
  id: string;
  name: string;
  reset: Plain;
  address: string;
  origin: Origin | null;
  first: Observed;
  last: Observed;
  history: Played[];
  snapshots: (string | null)[];
  why: string | null;
  state: unknown;
  over: boolean;
  mcpUrl: string | null;
  /** The call that ran. */
  pending: Call | null;
  drafts: Record<string, Draft>;
  recent: string[];
  open: string;
}

/** Makes the card that saves an episode. `onWritten` gets a sentence once a file was written. */
type SaveCardMaker = (read: () => { id: string; prompt: string }, onWritten: (text: string) => void) => HTMLElement;

/** A frame without an answer yet. */
interface Waiting {
  resolve: (data: any) => void;
  reject: (error: Error) => void;
  text: string;
}

/** An episode that is to be played again: its reset and its calls. */
interface Replay {
  reset: Plain;
  calls: Call[];
}

/** A recorded episode, and the steps that another one has in common with it. */
interface Origin {
  id: string;
  step: number;
}

/** The step of a recorded episode that another one continues. */
interface RecordedStart extends Origin {
  reset: Plain;
  /** The step that was asked for; one less is `step` if the episode is over after it. */
  wanted: number;
  /** That last step of the episode. */
  over: Step | null;
  /** All steps of the recorded episode, and what its reset returned. */
  steps: Step[];
  observation: Record<string, any>;
}

/** The world of a recorded episode before and after a step, and the HTML of the environment's view. `before` is null for the reset. */
interface RecordedWorld {
  before: unknown;
  after: unknown;
  view: string | null;
}

type WorldWriter = (at: number, world: RecordedWorld) => void;

/** Makes the slider over the steps of a list. `path` is that of the record, `show` shows the step of a number. */
type TimeMaker = (
  list: import("./static/step.js").StepList,
  path: string,
  playable: boolean,
  signal: AbortSignal,
) => { element: HTMLElement; show: (number: number) => void };

type RefusalMaker = (error: import("./static/api.js").ApiError) => HTMLElement | null;

/** Says why a recorded episode cannot be continued. */
type StartRefuser = (start: RecordedStart, error: import("./static/api.js").ApiError) => void;

type PlayedReader = (step: Step) => Played;

/** Makes the link that opens a step of a recorded episode in Play; 0: its reset. */
type BranchLinker = (id: string, number: number) => HTMLElement;

/** A value of a step, or of the reset (0). */
interface Earlier {
  number: number;
  value: unknown;
}

/** Makes the card of one call of a history. A server that is `guarded` wants a token. */
type PlayedCardMaker = (history: Played[], index: number, reset: Plain) => HTMLElement;

/** Reads a recorded episode, to continue it after the step `wanted`; 0: after its reset. */
type StartReader = (id: string, wanted: number, signal: AbortSignal) => Promise<RecordedStart>;

/** Reads the recorded episode at a path. */
type RecordReader = (
  path: string,
  signal: AbortSignal,
) => Promise<{ episode: Episode; hashes: Hashes; transcript: Said[]; reviews?: Review[]; drawings: Drawings }>;

/** What the server draws of an episode. */
interface Drawings {
  summary: Drawn;
  /** null: it continues no episode, and none continues it. */
  tree: Drawn | null;
  evidence: Drawn | null;
}

/** What a person says of an episode. */
interface Review {
  episode: string;
  rater: string;
  rating: number | null;
  tags: string[];
  note: string;
  at: number;
}

/** Makes the card of the reviews of the episode at a path. */
type ReviewMaker = (path: string, reviews: Review[], signal: AbortSignal) => HTMLElement;

/** Makes the links to the neighbours of an episode in the list of an address. */
type NeighbourMaker = (id: string, base: string, query: URLSearchParams, signal: AbortSignal) => HTMLElement;

/** Shows one recorded episode. */
type EpisodePage = (id: string, context: PageContext, signal: AbortSignal) => Promise<void>;

/** Shows two recorded episodes beside each other. */
type ComparisonPage = (id: string, other: string, context: PageContext, signal: AbortSignal) => Promise<void>;

/** Sorts the messages of a transcript by the step that comes next. */
type TranscriptReader = (entries: Said[]) => { before: Map<number, Message[]>; rest: Message[] };

/** Makes the element of a message. `turns` are those of the episode's model. */
type MessageMaker = (message: Message, turns?: ModelTurn[] | null) => HTMLElement;

/** Makes the list of an episode's model turns, if it has some. `onStep` shows a step. */
type TurnsMaker = (turns: ModelTurn[] | null | undefined, onStep: OnStep) => HTMLElement | null;

/** A call of the visitor's and what it did. `took` in seconds. */
interface Played {
  call: Call;
  answer: Observed;
  took: number;
  before: unknown;
  after: unknown;
  /** True if only the call was kept. */
  dropped?: boolean;
}

/** A change between two JSON values; `undefined`: not there. */
interface Change {
  path: string;
  before: unknown;
  after: unknown;
}

interface Reward {
  value: number;
  components: Record<string, number>;
}

interface Status {
  code: string;
  stage?: string | null;
  retryable?: boolean;
  limit?: string | null;
}

interface Failure {
  error_type: string;
  message: string;
  errors?: { loc: (string | number)[]; msg: string }[] | null;
}

interface Result {
  content: Block[];
  structured_content: Record<string, unknown> | null;
  is_error: boolean;
}

interface Step {
  call: Call & { step: number; plane: string; principal: string | null };
  position?: number;
  observation?: unknown;
  outcome: { result: Result | null; error: Failure | null; duration_s: number };
  reward: Reward | null;
  terminated: boolean;
  truncated: boolean;
  reason: string | null;
  started_at: number;
  /** Seconds from the tool's end until the step had its reward; 0 in older records. */
  scoring_s: number;
  fault: string | null;
  status: Status | null;
  logs: { level: string; message: string | null; progress: number | null; total: number | null }[];
}

interface TaskRef {
  id: string;
  split: string;
  version?: string;
  prompt?: string;
  reward_range?: [number, number];
}

interface Trajectory {
  episode_id: string;
  seed: number | null;
  options: Record<string, unknown>;
  dropped: number;
  task: TaskRef | null;
  observation: Record<string, any> | null;
  total_reward: number;
  terminated: boolean;
  truncated: boolean;
  reason: string | null;
  started_at: number;
  ended_at: number | null;
  end_reward: Reward | null;
  /** Seconds that scoring the end took, before `ended_at`; 0 if a step ended the episode. */
  end_scoring_s: number;
  verified: Reward | null;
  fault: string | null;
  forked_from: { episode_id: string; step: number } | null;
  status: Status | null;
  steps: Step[];
}

/** A row of `GET /sessions`. */
interface SessionInfo {
  session_id: string;
  created_at: number;
  last_activity_at: number;
  step_count: number;
  environment_type: string;
  origin: string;
  mode: string;
  planes: string[];
  episode_id: string | null;
  state: string;
  busy: boolean;
  agent: string | null;
  paused_until: number | null;
  task: TaskRef | null;
  return: number | null;
  reward: Reward | null;
}

/** Who has taken a session over, as `/sessions/ID/holder` answers. */
interface Holding {
  busy: boolean;
  paused_until: number | null;
  held: { by: string; begun: boolean; mine: boolean } | null;
  tools?: Tool[];
}

/** A part of a record that cannot be read. */
interface LeftOut {
  where: string;
  why: string;
}

/** A row of `GET /records`. */
interface RecordRow {
  /** The key of this very row: two episodes may have the same id. */
  place: string;
  id: string;
  task_id: string | null;
  split: string | null;
  environment: string;
  return: number | null;
  status: string | null;
  ending: string;
  n_steps: number;
  started_at: number;
  ended_at: number | null;
  agent: string | null;
  tools: string[];
}

/** A group of episodes. `split` is that of a task. */
interface RecordGroup {
  value: string | number | null;
  split: string | null;
  episodes: number;
  scored: number;
  mean: number | null;
  min: number | null;
  max: number | null;
  steps: number | null;
  errors: number | null;
}

/** What an axis is divided into. */
interface Bins {
  start: number;
  width: number;
  count: number;
}

/** The field of an axis, and what the axis is divided into. */
type Axis = [field: string, bins: Bins];

/** A cell from 0 to 1, its strength (null: without a value), its text, and the episode that it leads to. */
type Cell = [x: number, y: number, width: number, height: number, strength: number | null, text: string, place: string | null];

/** A chart of cells. `ends` stand under it. */
interface CellChart {
  title: string;
  range: string;
  cells: Cell[];
  ends: string[];
  about: string;
}

/** The answer of `GET /records/overview`. */
interface OverviewAnswer {
  total: number;
  charts: (CellChart & { x: Axis; y: Axis | null })[];
  heat: Omit<CellChart, "title" | "ends"> & { names: string[] };
  groups: { count: number; groups: RecordGroup[] } | null;
  /** The whole condition, and its parts that charts set: `return_from`, `return_below`, `steps_from`, `steps_below`, `tasks` and `rest`. */
  where: string;
  parts: Record<string, string>;
}

/** A part of a chart, each side from 0 to 1. */
interface Area {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** Makes a chart. `onBrush` returns the parts of the condition for what is dragged over. */
type BrushedChart = (chart: CellChart, onBrush: (area: Area) => Record<string, string | number>) => HTMLElement;

type CellMaker = (cell: Cell, base: string) => SVGElement;

type Brusher = (plot: HTMLElement, box: HTMLElement, onBrush: (area: Area) => void) => void;

/** A call on the trie of a task. */
interface Chip {
  name: string;
  arguments: string;
  reward: number | null;
  failed: boolean;
}

interface Lane {
  place: string;
  id: string;
  seed: number | null;
  score: number | null;
  advantage: number | null;
  status: string | null;
  n_steps: number;
  /** How many of its first steps the record lacks. */
  dropped: number;
  /** `lanes`: how many from this one on share the step; 0 for one that is drawn by an earlier lane. */
  steps: (Chip & { lanes: number })[];
}

/** The answer of `GET /records/rollouts`. */
interface Rollouts {
  total: number;
  scored: number;
  mean: number | null;
  equal: boolean;
  lanes: Lane[];
  kinds: Record<string, RecordGroup[]>;
  /** Where the lanes part, in words; null if no call tells winners from losers. */
  told: Drawn | null;
}

interface Episode {
  trajectory: Trajectory;
  environment: { name: string; version: string | null };
  agent: Record<string, unknown> | null;
  extra: Record<string, any>;
  /** Missing in records of older versions. */
  model_turns?: ModelTurn[] | null;
}

interface TurnTokens {
  ids: number[] | null;
  logprobs: (number | null)[] | null;
  texts: string[] | null;
}

/** A step of a transcript, by its number, or a message. */
type Said = { step: number } | Message;

/** A message of a transcript. `turn` is the index of the model's turn that it answers. */
interface Message {
  role: string;
  parts: MessagePart[];
  turn?: number;
}

/** A part of a message: a text, a thought, an error, a call, a result, an image or data. */
interface MessagePart {
  type: string;
  text?: string;
  name?: string;
  arguments?: unknown;
  /** Of a call: the step that it made. */
  step?: number | null;
  /** Of a result. */
  parts?: MessagePart[];
  value?: unknown;
}

/** What a list of steps shows beside them: what stands at the foot of a step, and the messages before it. */
interface StepListOptions {
  onSelect?: (number: number) => void;
  beside?: (number: number) => Child;
  before?: Map<number, Message[]>;
  turns?: ModelTurn[] | null;
}

/** Shows the step of a number. */
type OnStep = (step: number) => void;

/** A request to a model, and its answer. */
interface ModelTurn {
  request: Record<string, unknown>;
  repeated: { turn: number; messages: number; fields: string[] } | null;
  started_at: number;
  duration_s: number;
  status: number | null;
  answer: unknown;
  error: string | null;
  cut: string | null;
  model: string | null;
  calls: { name: string; step: number | null }[];
  usage: { input_tokens: number | null; output_tokens: number | null; cached_tokens: number | null } | null;
  prompt_ids: number[] | null;
  tokens: TurnTokens[];
}

/** Equal hashes mean equal facts. */
interface Hashes {
  reset: string;
  steps: string[];
  end: string;
}

/** An evaluation, as `/evaluations` lists it. */
interface Run {
  name: string;
  environment: string;
  agent: string | null;
  split: string | null;
  finished: number;
  planned: number | null;
  pass_at_1: number | null;
  mean_return: number | null;
  started_at: number;
}

/** Two evaluations, as `/evaluations/compare` answers. */
interface RunComparison {
  verdict: string;
  significant: boolean;
  notes: string[];
  tables: RunTable[];
}

/** One evaluation, as `/evaluations/NAME/report` answers. */
interface RunReport {
  title: string;
  notes: string[];
  recorded: boolean;
  charts: DrawnFigure[];
  tables: RunTable[];
}

/** A table of evaluations. A cell is a text, or the episodes that it stands for. */
interface RunTable {
  title: string;
  heads: string[];
  rows: (string | { id?: string | null; text: string; name?: string; run?: string; style?: string; where?: string; sort?: string }[])[][];
  style?: string;
}

/** The facts of an episode that its charts need. */
type Frame = Pick<Trajectory, "observation" | "end_reward" | "end_scoring_s" | "started_at" | "ended_at" | "dropped">;

/** A reward in a chart. */
interface Point {
  label: string;
  /** The place of its step in the list; -1: the reset's or the end's. */
  step: number;
  value: number;
  sum: number;
  parts: Map<string, number>;
  /** The parts without parts of their own: `verified` is the parent of `verified/key`. */
  leaves: Map<string, number>;
}

/** Makes a chart with its words. `range` is that of the axis; `legend` has classes and names. */
type FigureMaker = (
  title: string,
  description: string,
  range: string,
  shapes: (SVGElement | false)[],
  cursor: Cursor,
  height?: number,
  legend?: string[][],
  table?: () => Child[],
) => HTMLElement;

/** What stands in the columns of a chart: the text of one, its mark on the axis, and what shows its step. */
interface Cursor {
  count: number;
  text: (index: number) => string;
  tick: (index: number) => string;
  choose?: (index: number) => void;
}

type CursorMaker = (columns: Point[][], valueOf: (column: Point[]) => string, onStep?: OnStep) => Cursor;

type RewardChart = (points: Point[], onStep?: OnStep) => HTMLElement;

type TimeChart = (steps: Step[], frame: Frame, turns: ModelTurn[], onStep?: (index: number) => void) => HTMLElement | null;

/** Begins and lengths of spans, in seconds, in order. */
type Spans = [at: number, long: number][];

/** Returns how long spans take together, when the last is over, and the path that draws them in a chart of `whole` seconds. */
type SpanReader = (spans: Spans) => {
  busy: number;
  over: number;
  path: (whole: number) => string;
  /** The index of the last span within `wide` seconds; -1: none. */
  within: (from: number, wide: number) => number;
};

/** Names a step by its number and its tool. */
type StepNamer = (step: Step, index: number, frame: Frame) => string;

/** Signs in or out. `refuse` shows why it was not done. */
type Signer = (way: "in" | "out", body: Plain, refuse: (why: string) => void) => Promise<void>;

/** Waits for a time. */
type Waiter = (milliseconds: number, signal: AbortSignal) => Promise<void>;

/** Returns the address of a path such as `sessions/abc`, relative to the server's base. Empty parts of the query are left out. */
type AddressReader = (path: string, query?: AskOptions["query"]) => URL;

/** Asks the server and returns the JSON of its answer. Throws an ApiError if it refuses or does not answer. After a 401 the page shows the login form. */
type Asker = (path: string, options?: AskOptions) => Promise<any>;

/** Returns the path of a recorded episode. `base` is that of its record. */
type RecordPath = (id: string, base?: string) => string;

/** Returns the event of a block of lines; null for a comment. */
type EventReader = (block: string) => StreamEvent | null;

type Sender = (path: string, options: AskOptions, accept: string) => Promise<Response>;

/** Throws an error of the browser if `signal` has aborted, else an ApiError. */
type Unanswered = (error: unknown, signal?: AbortSignal) => never;

type RefusalReader = (path: string, response: Response) => Promise<Error>;

/** Returns the changes from one JSON value to another, in the order of the later one. Arrays are compared by index. */
type Differ = (before: unknown, after: unknown, path?: string) => Change[];

/** Draws the charts of an episode. */
type ChartsWriter = (steps: Step[], frame: Frame, turns?: ModelTurn[] | null) => void;

/** Returns the rewards of an episode in order. A reward without parts is its own part. */
type PointsReader = (steps: Step[], frame: Frame) => Point[];

/** Puts a chart over an axis of steps. */
type AxisMaker = (svg: SVGElement, cursor: Cursor, name: string) => Child[];

/** Makes an element of SVG. */
/** An element that the server drew: its tag, its attributes, its texts and elements. */
type Drawn = [string, Record<string, string>, ...(string | Drawn)[]];

/** A chart of the server: an SVG and its caption. */
type DrawnFigure = [string, Record<string, string>, Drawn, Drawn];
type Drawer = (element: Drawn, within?: boolean) => Element;
type DrawingMaker = (figure: DrawnFigure) => HTMLElement;

type ShapeMaker = (tag: string, attributes: Record<string, string | number>) => SVGElement;

/** Makes the element of a content block. `blobs` is the path of the record's blobs. */
type ContentMaker = (block: Block, blobs?: string) => HTMLElement;

/** Makes a text as it is, with a button that copies it. `name` says what it is, for screen readers. */
type CodeMaker = (text: string, name: string, shown?: Child[]) => HTMLElement;

/** Makes lines of JSON. `label` stands before the value, and `end` after it. */
type JsonLines = (value: unknown, label?: string, end?: string) => HTMLElement;

/** Returns a text with its marks as elements. */
type Inline = (text: string) => Child[];

/** Puts children into an element, texts as text. */
type Filler = (element: Element, ...children: Child[]) => void;

type LinkMaker = (href: string, ...children: Child[]) => HTMLAnchorElement;

type Teller = (element: Element, text: string) => void;

/** Makes a button that copies a text. `name` says what is copied, for screen readers. */
type CopyMaker = (text: string, name: string) => HTMLButtonElement;

/** Makes tables with their headings. `base` is the path of the record; that of the list, if episodes name their evaluation. */
type TablesMaker = (tables: RunTable[], base: string) => Child[];

type EvidenceReader = (trajectory: Trajectory) => Promise<Element | null>;

type Comparison = (one: unknown, other: unknown) => boolean;

/** Sets a member, also one named `__proto__`. */
type Setter = (object: Plain, name: string, value: unknown) => void;

/** Returns a number with at most six digits. `none` is the text for no value. */
type NumberWriter = (value: number | null | undefined, none?: string) => string;

/** Returns a moment in the reader's time zone, from the seconds since the epoch. */
type MomentWriter = (seconds: number | null | undefined) => string;

/** Returns a task with its split. */
type TaskWriter = (task: { id: string; split?: string } | null | undefined) => string;

/** Returns a count with its noun, whose plural has an s. */
type CountWriter = (count: number, noun: string) => string;

/** Returns the texts that are there, with a comma between them. */
type ListWriter = (...texts: (string | null | undefined | false)[]) => string;

/** Returns how an episode has ended. */
type EndWriter = (outcome: { terminated?: boolean; truncated?: boolean }, otherwise: string) => string;

/** Returns a function that asks for `work` in the next frame of the browser. A hidden page has no frames: the work waits until it is shown. */
type FrameAsker = (work: () => void, signal: AbortSignal) => () => void;

/** Calls a function when its key is pressed, unless the visitor is typing. A page's keys, on the document, come before those of the shell, on the window. */
type KeyListener = (keys: Record<string, () => void>, signal: AbortSignal, at?: Document | Window) => void;

type ConstantMaker = (value: unknown) => Field;

/** Returns what is made of the values of a form. If one of them is none, it says so. */
type Attempt = <T>(problem: HTMLElement, refusal: string, read: () => T) => T | undefined;

/** Reads all fields, so that every fault is marked. Then it throws the first one. */
type EveryReader = <T>(reads: (() => T)[]) => T[];

type PatternTest = (value: string, pattern: string) => boolean;

/** Shows the sessions until the page is left. */
type SessionsPage = (root: HTMLElement, signal: AbortSignal) => Promise<void>;

/** Asks who the visitor is, then shows the page of the address. A server that has `refused` a signed-in visitor is not asked again. */
type Starter = (refused?: boolean) => Promise<void>;

/** Returns the first number of a JSON text that a browser cannot hold. */
type RoundedFinder = (text: string) => string | undefined;

/** Returns the value of a JSON text. Throws a SyntaxError if it is none. */
type JsonReader = (text: string) => any;

/** Returns the JSON text of a value that `read` returned. */
type JsonWriter = (value: unknown, indent?: number) => string | undefined;

/** Returns the path of a task's page. `name` has its split. `shown`: with the episodes played in the console. */
type TaskPath = (base: string, name: string, shown: boolean, where?: string) => string;

/** Parts of a condition, by name. */
type Parts = Record<string, string | number>;

/** Returns the parts of a condition for what is dragged over, from 0 to 1. */
type BoundsReader = (axis: Axis, from: number, to: number) => Parts;

/** Does something with the session. What is asked meanwhile is refused, and the visitor reads why. Returns false if it was not done. */
type AloneDoer = (
  what: string,
  work: (session: import("./static/socket.js").Session) => Promise<void>,
  refuse: (error: import("./static/api.js").ApiError) => void,
) => Promise<boolean>;

/** Returns the first call that is undone. */
type Restorer = (session: import("./static/socket.js").Session, snapshot_id: string, calls: number) => Promise<Played | undefined>;

/** Shows a card as the result. */
type ResultWriter = (title: string, ...children: Child[]) => void;

/** Says why the episode is another one, and offers its calls. */
type Offer = (why: string, calls: Call[], about?: Child) => void;

/** Shows the form of a tool, the first one if there is none of that name. `chosen` is true if the visitor chose it. */
type ToolSelector = (name: string, values?: Plain, chosen?: boolean) => void;

/** Makes a call for the view; null if it was not made. */
type ViewCaller = (call: Call) => Promise<Result | null>;

/** Returns the step that an answer tells of. */
type PlayedStep = (played: Played, number: number) => Step;

/** Returns the steps of an episode, with the observations of own actions. */
type StepsReader = (episode: Episode) => Step[];

/** Applies the filters, and what is changed. */
type Applier = (change?: { where?: string; sort?: string }) => void;

type HeadMaker = (columns: [string, string, string?][]) => HTMLElement;

type GroupsWriter = (answer: NonNullable<OverviewAnswer["groups"]>) => void;

type Picker = (id: string, wanted: boolean) => void;

/** Makes a row without what takes long. */
type RowMaker = (index: number) => HTMLElement;

/** Adds the rest to a row, once. */
type RowCompleter = (row: Element, index: number) => void;

/** Completes the row of an index, brings it into view, and returns it; null if there is none. */
type RowShower = (index: number, block: ScrollLogicalPosition) => HTMLElement | null;

/** Shows a call until `signal` aborts. */
type RunningCard = (
  place: HTMLElement,
  name: string,
  id: string,
  signal: AbortSignal,
) => Promise<void>;

/** Returns the members of a union, null too; none if the resolved schema is no union. */
type MembersReader = (schema: Schema, root: Schema) => Schema[];

type ReferenceReader = (reference: string, root: Schema) => Schema;

type Merger = (one: Schema, other: Schema) => Schema;

/** Opens a new session. Throws an ApiError if the server does not answer or refuses. */
type SessionOpener = (
  onLost: (error: import("./static/api.js").ApiError) => void,
) => Promise<import("./static/socket.js").Session>;

/** Sends a frame and returns the `data` of its answer. The session is joined first, if no socket holds it. Throws an ApiError if the server refuses the frame or the session ends first. */
type FrameSender = <T extends string>(type: T, data?: unknown) => Promise<AnswerTo<T>>;

/** Makes the heading of a step: its number, call, reward, and what is unusual. */
type StepHeadMaker = (step: Step, number: number) => HTMLElement;

type SameTest = (text: string, value: unknown) => boolean;

/** Says what has changed in a value since an earlier one. */
type ChangesMaker = (earlier: Earlier, value: unknown) => HTMLElement;

/** Makes a table of changes. `names` are those of the two sides. */
type ChangeTable = (found: Change[], names?: string[]) => HTMLElement;

/** Begins an episode. */
type Beginner = (trajectory: Pick<Trajectory, "observation" | "dropped" | "task">) => void;

/** `sign`: of the advantages of the lanes that made the call. */
type ChipMaker = (step: Chip, href: string, sign: string | null) => HTMLElement;

type Cutter = (text: string, most: number) => string;

type ToolCardMaker = (tool: Tool, onCall: (value: Plain) => Promise<void>) => ToolCard;

/** Shows tools. `open` is the name of the one whose form is shown. */
type ToolsWriter = (tools: Tool[], open: string) => void;

type ToolGroup = (name: string, tools: Tool[]) => HTMLElement;

type TurnFacts = (turn: ModelTurn, number: number | undefined) => string;

type PartMaker = (part: MessagePart, tokens?: TurnTokens) => Child;

type BlockMaker = (block: string) => HTMLElement;

type TurnMaker = (turn: ModelTurn, index: number, onStep: OnStep) => HTMLElement;

type TurnBody = (turn: ModelTurn, onStep: OnStep) => Child[];

/** Reads the HTML of a `ui://` resource; null if an episode's MCP address does not give it to this page. */
type ViewReader = (url: string, uri: string) => Promise<string | null>;

/** Tells the view of a call. */
type CallTeller = (call: Call, result: Result) => void;

/** Notifies the view once it is ready. */
type Notifier = (name: string, params: unknown) => void;

/** Asks something of the session, and says why if it is not done. */
type Orderer = (work: () => Promise<unknown>) => Promise<void>;

type EpisodeBeginner = (episode: string, trajectory: Trajectory) => void;

/** Returns a condition that holds if both do. */
type Joiner = (one: string, other: string) => string;

type EpisodeTest = (episode: { over: boolean; history: Played[]; origin: Origin | null }) => boolean;
